// The witness of the best known value of contest/rectangles. Ours: simulated annealing that moves one side at a time
// and pushes the neighbours back, from a fixed stream of random numbers.
#include <cmath>
#include <cstdio>
#include <cstring>

int n, side = 200, x[64], y[64], area[64], box[64][4];
unsigned long long state = 88172645463325252ULL;

double draw() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 11) * (1.0 / 9007199254740992.0);
}

double content(int i) {
    double given = (box[i][2] - box[i][0]) * (box[i][3] - box[i][1]);
    double r = given < area[i] ? given / area[i] : area[i] / given;
    return 1 - (1 - r) * (1 - r);
}

int main() {
    if (scanf("%d", &n) != 1) return 1;
    for (int i = 0; i < n; i++) {
        if (scanf("%d %d %d", x + i, y + i, area + i) != 3) return 1;
        box[i][0] = x[i], box[i][1] = y[i], box[i][2] = x[i] + 1, box[i][3] = y[i] + 1;
    }
    double value = 0, best = 0;
    static int kept[64][4], undo[64][4];
    for (int i = 0; i < n; i++) value += content(i);
    const int STEPS = 120000;
    for (int step = 0; step < STEPS; step++) {
        double part = double(step) / STEPS, heat = 0.05 * std::pow(0.004, part);
        int i = int(n * draw()), k = int(4 * draw()), reach = 1 + int(12 * (1 - part) * draw());
        int by = draw() < 0.5 ? -reach : reach;
        double before = value, after = value - content(i);
        int old = box[i][k];
        int moved[64], count = 0;
        int to = old + by;
        if (k < 2) {
            int at = k ? y[i] : x[i];
            if (to < 0 || to > at) continue;
        } else {
            int at = k == 3 ? y[i] : x[i];
            if (to > side || to <= at) continue;
        }
        box[i][k] = to;
        bool fine = true;
        for (int j = 0; j < n && fine; j++) {
            if (j == i) continue;
            int *b = box[i], *c = box[j];
            if (!(b[0] < c[2] && c[0] < b[2] && b[1] < c[3] && c[1] < b[3])) continue;
            std::memcpy(undo[count], c, sizeof undo[0]);
            moved[count++] = j;
            after -= content(j);
            int other = k ^ 2;
            c[other] = to;
            int at = k & 1 ? y[j] : x[j];
            fine = other < 2 ? c[other] <= at : c[other] > at;
            if (fine) after += content(j);
        }
        if (fine) after += content(i);
        if (fine && (after >= before || draw() < std::exp((after - before) / heat))) {
            value = after;
            if (value > best) best = value, std::memcpy(kept, box, sizeof kept);
            continue;
        }
        box[i][k] = old;
        while (count--) std::memcpy(box[moved[count]], undo[count], sizeof undo[0]);
    }
    for (int i = 0; i < n; i++) printf("%d %d %d %d\n", kept[i][0], kept[i][1], kept[i][2], kept[i][3]);
}
