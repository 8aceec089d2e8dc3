#include <cstdio>

int stacks, highest, height[16], yard[16][16];

// EVOLVE-BLOCK-START
double HEIGHT_LOSS = 0.5;
double SOON_LOSS = 4.0;
double GAP_LOSS = 0.1;

double cost(int container, int soonest, int height, int away) {  // of the stack that it moves to
    double value = HEIGHT_LOSS * height;
    if (soonest < container) value += SOON_LOSS - GAP_LOSS * (container - soonest);
    else value += GAP_LOSS * soonest;
    return value + 0.01 * away;
}
// EVOLVE-BLOCK-END

int main() {
    if (scanf("%d %d", &stacks, &highest) != 2) return 1;
    int total = 0, moves[1000][2], count = 0;
    for (int s = 0; s < stacks; s++, total += height[s - 1]) {
        if (scanf("%d", height + s) != 1) return 1;
        for (int k = 0; k < height[s]; k++)
            if (scanf("%d", &yard[s][k]) != 1) return 1;
    }
    for (int due = 1; due <= total; due++) {
        int from = 0, at = -1;
        for (int s = 0; s < stacks; s++)
            for (int k = 0; k < height[s]; k++)
                if (yard[s][k] == due) from = s, at = k;
        while (height[from] > at + 1) {
            int best = -1, container = yard[from][--height[from]];
            double least = 0;
            for (int s = 0; s < stacks; s++) {
                if (s == from || height[s] >= highest) continue;
                int soonest = total + 1;
                for (int k = 0; k < height[s]; k++)
                    if (yard[s][k] < soonest) soonest = yard[s][k];
                double c = cost(container, soonest, height[s], s < from ? from - s : s - from);
                if (best < 0 || c < least) least = c, best = s;
            }
            yard[best][height[best]++] = container;
            moves[count][0] = from, moves[count++][1] = best;
        }
        height[from]--;
    }
    printf("%d\n", count);
    for (int i = 0; i < count; i++) printf("%d %d\n", moves[i][0], moves[i][1]);
}
