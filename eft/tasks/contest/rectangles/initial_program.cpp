#include <cstdio>

int n, side = 200, x[64], y[64], area[64], box[64][4];

bool clear(int i, const int *b) {
    if (b[0] < 0 || b[1] < 0 || b[2] > side || b[3] > side) return false;
    for (int j = 0; j < n; j++)
        if (j != i && b[0] < box[j][2] && box[j][0] < b[2] && b[1] < box[j][3] && box[j][1] < b[3])
            return false;
    return true;
}

// EVOLVE-BLOCK-START
int ROUNDS = 6;
int STEP = 3;
double ENOUGH = 0.7;

void grow() {
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 4; k++) {
                int b[4] = {box[i][0], box[i][1], box[i][2], box[i][3]};
                b[k] += k < 2 ? -STEP : STEP;
                double given = (b[2] - b[0]) * (b[3] - b[1]);
                if (clear(i, b) && given < ENOUGH * area[i]) box[i][k] = b[k];
            }
}
// EVOLVE-BLOCK-END

int main() {
    if (scanf("%d", &n) != 1) return 1;
    for (int i = 0; i < n; i++) {
        if (scanf("%d %d %d", x + i, y + i, area + i) != 3) return 1;
        box[i][0] = x[i], box[i][1] = y[i], box[i][2] = x[i] + 1, box[i][3] = y[i] + 1;
    }
    grow();
    for (int i = 0; i < n; i++) printf("%d %d %d %d\n", box[i][0], box[i][1], box[i][2], box[i][3]);
}
