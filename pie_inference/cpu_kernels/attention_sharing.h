// Finds the keys that decodes of a batch have in common, from their first ones on: as forks of a text have, and texts that
// begin with the same pages.
//
// Decodes are sorted by their runs of keys, as words are in a dictionary. So those that begin alike stand together, and
// among these those that go on alike. Each such group gets a shared tile for what it has in common beyond the group around
// it, from whose result it goes on. A shared tile ends where a block of its decodes would end. So they compute what they
// would compute alone, bit by bit, unless the keys of one would be split among threads.
#pragma once

#include "attention.h"

#include <algorithm>
#include <deque>
#include <tuple>
#include <vector>

static const int64_t FEWEST_SHARED_KEYS = 128;  // in a shared tile: with fewer, it costs what it saves

class Sharing {
  public:
    // `block`: keys that a decode goes through at a time.
    Sharing(const Batch& batch, int64_t block, Tiles& tiles) : batch_(batch), block_(block), tiles_(tiles) {
        tiles_.num_shared = 0;
    }

    // Fills `tiles.shared`, with fewer tiles than sequences, and `tiles.shared_rows`.
    void find() {
        for (int64_t n = 0; n < batch_.num_sequences; n++)
            if (batch_.q_indptr[n + 1] - batch_.q_indptr[n] == 1 && !has_mask(batch_, n)) order_.push_back(n);
        above_.resize(batch_.num_sequences);
        part(0, order_.size(), 0, 0, {-1, 0});
        for (; !groups_.empty(); groups_.pop_front()) list(groups_.front());
        for (int64_t place = 0; place < (int64_t)order_.size(); place++) {
            above_[order_[place]].place = place;
            tiles_.shared_rows[place] = batch_.q_indptr[order_[place]];
        }
    }

    // A tile of one sequence without the keys that shared tiles have.
    Tile without_shared(Tile tile) const {
        if (!tiles_.num_shared) return tile;
        const Above& above = above_[tile.sequence];
        tile.shared = above.shared;
        tile.first_key = above.end_key;
        tile.place = above.place;
        return tile;
    }

  private:
    // What shared tiles have of a sequence: its keys up to `end_key`, the last ones in the tile `shared`.
    struct Above {
        int64_t shared = -1, end_key = 0, place = 0;
    };

    // Those in order_[begin, end), whose runs up to number `depth` are the same; they have `key` keys before it.
    struct Group {
        int64_t begin, end, depth, key;
        Above above;
    };

    // Page, first and last slot of a sequence's run number `depth`; it may have fewer.
    std::tuple<int32_t, int32_t, int32_t> run_of(int64_t sequence, int64_t depth) const {
        const int64_t run = batch_.kv_indptr[sequence] + depth;
        if (run >= batch_.kv_indptr[sequence + 1]) return {-1, 0, 0};
        return {batch_.kv_pages[run], batch_.kv_begins[run], batch_.kv_ends[run]};
    }

    bool are_alike(int64_t a, int64_t b, int64_t depth) const {
        const auto run = run_of(a, depth);
        return std::get<0>(run) >= 0 && run == run_of(b, depth);
    }

    // Finds groups among those in order_[begin, end), whose first `depth` runs, with `key` keys, are the same.
    void part(int64_t begin, int64_t end, int64_t depth, int64_t key, const Above& above) {
        std::sort(order_.begin() + begin, order_.begin() + end,
                  [&](int64_t a, int64_t b) { return run_of(a, depth) < run_of(b, depth); });
        for (int64_t first = begin, next; first < end; first = next) {
            next = first + 1;
            while (next < end && are_alike(order_[first], order_[next], depth)) next++;
            if (next - first > 1) groups_.push_back({first, next, depth, key, above});
            else above_[order_[first]] = above;
        }
    }

    // Makes a tile for those of a group, unless they have too little in common.
    void list(Group group) {
        auto [begin, end, depth, key, above] = group;
        for (bool alike = true; alike;) {
            const auto [page, first, last] = run_of(order_[begin], depth++);
            key += last - first;
            for (int64_t n = begin + 1; alike && n < end; n++) alike = are_alike(order_[begin], order_[n], depth);
        }
        const int64_t end_key = key / block_ * block_;
        if (end_key - above.end_key >= FEWEST_SHARED_KEYS) {
            Tile& tile = tiles_.shared[tiles_.num_shared];
            tile = {order_[begin], 0, end - begin, above.end_key, end_key, 0, 1, 0, above.shared, begin};
            above = {tiles_.num_shared++, end_key};
        }
        part(begin, end, depth, key, above);
    }

    const Batch& batch_;
    const int64_t block_;
    Tiles& tiles_;
    std::vector<int64_t> order_;  // sequences that decode
    std::vector<Above> above_;    // of all sequences
    std::deque<Group> groups_;    // whose tiles are to be made, those that have least above them first
};
