// Which rows share a slot, and which places they see: worked out once per forward, before the layers.
#pragma once

#include "attention.h"
#include "model.h"

namespace firesteel {

class Plan {
 public:
  int64_t chunks, block_count, wave_count;
  int64_t *order, *rank;  // [n] flat row of the r-th row in sorted order, and the inverse
  int64_t* mask_rows;     // [n] row of the mask of the r-th row in sorted order
  Block* blocks;          // [block_count]
  int64_t* waves;         // [wave_count + 1] first block of each wave
  uint8_t* masks;         // [windows, B, R, S], logical from a block's fork on
  int64_t* limits;        // [windows, n, chunks] places of a chunk that any row of a block sees, rounded up to 16
  int64_t* forks;         // [windows, n] first place of a block's branches; c.length if they need no care
  Path* paths;            // [windows, n] of the r-th row in sorted order
  int64_t most;           // places of a piece of work

  void lay_out(Arena& arena, const Model& m, const Call& c) {
    chunks = (c.length + kChunk - 1) / kChunk;
    order = arena.take<int64_t>(c.n);
    rank = arena.take<int64_t>(c.n);
    mask_rows = arena.take<int64_t>(c.n);
    blocks = arena.take<Block>(c.n);
    waves = arena.take<int64_t>(c.n + 1);
    masks = arena.take<uint8_t>(m.window_count * c.slots_count * c.width * c.length);
    limits = arena.take<int64_t>(m.window_count * c.n * chunks);
    forks = arena.take<int64_t>(m.window_count * c.n);
    paths = arena.take<Path>(m.window_count * c.n);
    most = kChunk + up16(c.width);
    branches = arena.take<int32_t>(m.window_count * c.n * most);
  }

  void make(const Model& m, const Call& c) {
    sort_rows(c);
    make_masks(m, c);
    for (int64_t w = 0; w < m.window_count; ++w)
      for (int64_t b = 0; b < block_count; ++b) find_paths(c, w, b);
  }

  // How many places the piece of work that begins with chunk k has for block b; 0 if there is nothing to do.
  int64_t places(int64_t window, int64_t n, int64_t b, int64_t k) const {
    const int64_t* limit = limits + (window * n + b) * chunks;
    const int64_t last = forks[window * n + b] / kChunk;  // the piece with the branches is the last
    if (k < last) return limit[k];
    return k == last ? std::max<int64_t>(end_of(limit) - k * kChunk, 0) : 0;
  }

 private:
  int32_t* branches;  // [windows, n, most] the places of `paths`

  int64_t end_of(const int64_t* limit) const {
    int64_t k = chunks;
    while (k && !limit[k - 1]) --k;
    return k ? (k - 1) * kChunk + limit[k - 1] : 0;
  }

  // Rows of a slot become neighbours, in blocks of up to kWave; blocks of up to kWave rows together are a wave.
  void sort_rows(const Call& c) {
    for (int64_t i = 0; i < c.n; ++i) order[i] = i;
    std::stable_sort(order, order + c.n, [&](int64_t a, int64_t b) { return c.slots[a] < c.slots[b]; });
    block_count = wave_count = 0;
    int64_t in_wave = kWave;
    for (int64_t i = 0; i < c.n;) {
      int64_t end = i;
      while (end < c.n && end - i < kWave && c.slots[order[end]] == c.slots[order[i]]) ++end;
      if (in_wave + end - i > kWave) waves[wave_count++] = block_count, in_wave = 0;
      in_wave += end - i;
      blocks[block_count++] = {c.slots[order[i]], i, end - i};
      for (; i < end; ++i) rank[order[i]] = i, mask_rows[i] = c.flat[order[i]];
    }
    waves[wave_count] = block_count;
  }

  // One mask per sliding window, and for each block how many places of each chunk any of its rows sees.
  void make_masks(const Model& m, const Call& c) {
    const int64_t area = c.slots_count * c.width * c.length;
    for (int64_t w = 0; w < m.window_count; ++w) {
      uint8_t* to = masks + w * area;
      std::memcpy(to, c.mask, area);
      for (int64_t i = 0; i < c.n && m.windows[w]; ++i)
        for (int64_t s = 0; s < c.length; ++s)
          to[c.flat[i] * c.length + s] &=
              c.positions[i] - c.key_positions[c.slots[i] * c.length + s] < m.windows[w];
      for (int64_t b = 0; b < block_count; ++b)
        for (int64_t k = 0; k < chunks; ++k) {
          int64_t& limit = limits[(w * c.n + b) * chunks + k];
          limit = 0;
          const int64_t start = k * kChunk, end = std::min(start + kChunk, c.length);
          for (int64_t r = 0; r < blocks[b].rows; ++r) {
            const uint8_t* row = to + mask_rows[blocks[b].first + r] * c.length;
            int64_t last = end;
            while (last > start + limit && !row[last - 1]) --last;
            limit = last - start;
          }
          limit = up16(limit);
        }
    }
  }

  // From the first place on that a chain would not have given its row, the block's masks become logical and its rows get
  // paths. A row's places from there on are its own branch, whose last logical place is its position.
  void find_paths(const Call& c, int64_t w, int64_t b) {
    const Block& block = blocks[b];
    int64_t& fork = forks[w * c.n + b];
    fork = c.length;
    for (int64_t r = block.first; r < block.first + block.rows; ++r)
      if (c.positions[order[r]] < c.places[order[r]]) fork = std::min(fork, c.positions[order[r]]);
    const int64_t end = end_of(limits + (w * c.n + b) * chunks), base = fork / kChunk * kChunk;
    if (end <= fork || end - base > most) fork = c.length;  // too far apart to be a tree: the bits may depend on places
    if (fork == c.length) return;
    for (int64_t r = block.first; r < block.first + block.rows; ++r) {
      uint8_t* mask = masks + (w * c.slots_count * c.width + mask_rows[r]) * c.length;
      int32_t* mine = branches + (w * c.n + r) * most;
      int64_t count = 0;
      for (int64_t s = fork; s < end; ++s)
        if (mask[s]) mine[count++] = int32_t(s - base);
      const int64_t start = std::max(fork, std::min(c.positions[order[r]] + 1, end) - count);
      paths[w * c.n + r] = {mine, start - base, count};
      std::fill(mask + fork, mask + end, 0);
      std::fill(mask + start, mask + start + count, 1);
    }
  }
};

}  // namespace firesteel
