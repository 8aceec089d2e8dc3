#include <algorithm>
#include <cstdio>
#include <cstdlib>

int n, m, place[64][4];

int distance(int a, int b, int c, int d) { return abs(a - c) + abs(b - d); }

// EVOLVE-BLOCK-START
double FAR_LOSS = 0.2;
double TRIP_LOSS = 0.4;
double BRING_GAIN = 20.0;
double HOME_LOSS = 0.002;

double value(const int *p) {  // the orders of the least value are taken
    double far = distance(p[0], p[1], 200, 200) + distance(p[2], p[3], 200, 200);
    return FAR_LOSS * far + TRIP_LOSS * distance(p[0], p[1], p[2], p[3]);
}

double cost(int x, int y, const int *to, bool bring, int left) {  // the stop of the least cost is next
    double home = distance(to[0], to[1], 200, 200);
    return distance(x, y, to[0], to[1]) - BRING_GAIN * bring + HOME_LOSS * home * left;
}
// EVOLVE-BLOCK-END

int main() {
    if (scanf("%d %d", &n, &m) != 2) return 1;
    int order[64], state[64] = {};
    for (int i = 0; i < n; i++) {
        order[i] = i;
        for (int k = 0; k < 4; k++)
            if (scanf("%d", &place[i][k]) != 1) return 1;
    }
    std::stable_sort(order, order + n, [](int i, int j) { return value(place[i]) < value(place[j]); });
    for (int left = 2 * m, x = 200, y = 200; left; left--) {
        int best = -1;
        double least = 1e18;
        for (int k = 0; k < m; k++) {
            int i = order[k];
            if (state[i] == 2) continue;
            double c = cost(x, y, place[i] + 2 * state[i], state[i], left);
            if (best < 0 || c < least) least = c, best = i;
        }
        x = place[best][2 * state[best]], y = place[best][2 * state[best] + 1];
        printf("%d\n", state[best]++ ? -best - 1 : best + 1);
    }
}
