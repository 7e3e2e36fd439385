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
  uint8_t* masks;         // [windows, B, R, S]
  int64_t* limits;        // [windows, n, chunks] places of a chunk that any row of a block sees, rounded up to 16

  void lay_out(Arena& arena, const Model& m, const Call& c) {
    chunks = (c.length + kChunk - 1) / kChunk;
    order = arena.take<int64_t>(c.n);
    rank = arena.take<int64_t>(c.n);
    mask_rows = arena.take<int64_t>(c.n);
    blocks = arena.take<Block>(c.n);
    waves = arena.take<int64_t>(c.n + 1);
    masks = arena.take<uint8_t>(m.window_count * c.slots_count * c.width * c.length);
    limits = arena.take<int64_t>(m.window_count * c.n * chunks);
  }

  void make(const Model& m, const Call& c) {
    sort_rows(c);
    make_masks(m, c);
  }

 private:
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
};

}  // namespace firesteel
