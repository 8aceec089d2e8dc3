// The witness of the best known value of contest/containers. Ours: beam search over relocations, ranked by the number
// of containers that still stand on one that leaves earlier.
#include <algorithm>
#include <cstdio>
#include <vector>

struct State {
    signed char height[8], yard[8][8];
    int due, parent, from, to;
    double rank;
};

int stacks, highest, total;

void leave(State &s) {  // all that can leave by themselves
    for (bool gone = true; gone;) {
        gone = false;
        for (int k = 0; k < stacks; k++)
            while (s.height[k] && s.yard[k][s.height[k] - 1] == s.due) s.height[k]--, s.due++, gone = true;
    }
}

double rank_of(const State &s) {
    double blocked = 0;
    for (int k = 0; k < stacks; k++) {
        int soonest = total + 1;
        for (int h = 0; h < s.height[k]; h++) {
            int c = s.yard[k][h];
            if (c > soonest) blocked += 1 + 0.002 * (total - soonest);
            else if (h) blocked += 0.004 * (soonest - c);
            if (c < soonest) soonest = c;
        }
    }
    return blocked;
}

int main() {
    if (scanf("%d %d", &stacks, &highest) != 2) return 1;
    State first = {};
    for (int s = 0; s < stacks; s++) {
        int height;
        if (scanf("%d", &height) != 1) return 1;
        first.height[s] = height, total += height;
        for (int k = 0; k < height; k++) {
            int c;
            if (scanf("%d", &c) != 1) return 1;
            first.yard[s][k] = c;
        }
    }
    first.due = 1;
    leave(first);
    std::vector<std::vector<State>> layers = {{first}};
    int last = -1;
    while (last < 0) {
        auto &layer = layers.back();
        for (size_t i = 0; i < layer.size() && last < 0; i++)
            if (layer[i].due > total) last = int(i);
        if (last >= 0) break;
        std::vector<State> next;
        for (size_t i = 0; i < layer.size(); i++) {
            const State &s = layer[i];
            int from = -1;
            for (int k = 0; k < stacks; k++)
                for (int h = 0; h < s.height[k]; h++)
                    if (s.yard[k][h] == s.due) from = k;
            bool empty = false;
            for (int to = 0; to < stacks; to++) {
                if (to == from || s.height[to] >= highest) continue;
                if (!s.height[to] && empty) continue;
                empty |= !s.height[to];
                State child = s;
                child.yard[to][int(child.height[to]++)] = child.yard[from][int(--child.height[from])];
                child.parent = int(i), child.from = from, child.to = to;
                leave(child);
                child.rank = rank_of(child);
                next.push_back(child);
            }
        }
        std::stable_sort(next.begin(), next.end(), [](const State &a, const State &b) { return a.rank < b.rank; });
        if (next.size() > 400) next.resize(400);
        layers.push_back(next);
    }
    std::vector<std::pair<int, int>> moves;
    for (int k = int(layers.size()) - 1, i = last; k > 0; i = layers[k--][i].parent)
        moves.push_back({layers[k][i].from, layers[k][i].to});
    std::reverse(moves.begin(), moves.end());
    printf("%d\n", int(moves.size()));
    for (auto &m : moves) printf("%d %d\n", m.first, m.second);
}
