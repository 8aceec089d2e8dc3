// The witness of the best known value of contest/deliveries. Ours: simulated annealing over trips, from a fixed stream
// of random numbers: an order's two stops are taken out and put back, or another order's in their place.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

int n, m, place[64][4], stop[128], size_;
bool in[64];
unsigned long long state = 88172645463325252ULL;

double draw() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 11) * (1.0 / 9007199254740992.0);
}

int length(const int *s, int count) {
    int x = 200, y = 200, total = 0;
    for (int i = 0; i < count; i++) {
        const int *p = place[abs(s[i]) - 1] + (s[i] > 0 ? 0 : 2);
        total += abs(p[0] - x) + abs(p[1] - y), x = p[0], y = p[1];
    }
    return total + abs(x - 200) + abs(y - 200);
}

int main() {
    if (scanf("%d %d", &n, &m) != 2) return 1;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 4; k++)
            if (scanf("%d", &place[i][k]) != 1) return 1;
    for (int i = 0; i < m; i++) stop[2 * i] = i + 1, stop[2 * i + 1] = -i - 1, in[i] = true;
    int value = length(stop, 2 * m), best = value, kept[128];
    std::memcpy(kept, stop, sizeof kept);
    const int STEPS = 100000;
    for (int step = 0; step < STEPS; step++) {
        double heat = 60 * std::pow(0.02, double(step) / STEPS);
        int out = abs(stop[int(2 * m * draw())]), put = out;
        if (draw() < 0.5) {
            put = 1 + int(n * draw());
            if (in[put - 1]) put = out;
        }
        int rest[128], count = 0;
        for (int i = 0; i < 2 * m; i++)
            if (abs(stop[i]) != out) rest[count++] = stop[i];
        int a = int((count + 1) * draw()), b = a + int((count + 1 - a) * draw() * draw());
        int next[128], size = 0;
        for (int i = 0; i <= count; i++) {
            if (i == a) next[size++] = put;
            if (i == b) next[size++] = -put;
            if (i < count) next[size++] = rest[i];
        }
        int after = length(next, size);
        if (after <= value || draw() < std::exp((value - after) / heat)) {
            value = after, in[out - 1] = false, in[put - 1] = true;
            std::memcpy(stop, next, sizeof(int) * size);
            if (value < best) best = value, std::memcpy(kept, stop, sizeof kept);
        }
    }
    for (int i = 0; i < 2 * m; i++) printf("%d\n", kept[i]);
}
