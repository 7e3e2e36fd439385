// Attention of the rows of many trees over their slots' caches, in chunks of 128 places.
//
// A chunk is one piece of work: for one slot and one key head it scores all rows (the query heads of the group are
// rows too), and leaves each row's maximum, sum and weighted values; a second pass joins the chunks in order. A row's
// result depends on its own mask and on nothing else: not on the rows beside it, nor on how far the mask is padded.
#pragma once

#include "product.h"

namespace firesteel {

constexpr int64_t kChunk = 128;  // places
constexpr int64_t kWave = 64;    // rows whose chunks are held at once
constexpr int64_t kStrip = 96;   // scores held at once, in (row, head) pairs: 48 KB

struct Block {  // up to kWave rows of one slot, neighbours in the sorted order
  int64_t slot, first, rows;
};

struct Heads {
  int64_t heads, kv_heads, dim;
  int64_t group() const { return heads / kv_heads; }
};

struct Partial {       // of the rows of a wave; pair = (kv_head * kWave + row) * group + head
  float* largest;      // [pairs, chunks]
  float* sums;         // [pairs, chunks]
  float* values;       // [pairs, chunks, dim]
};

struct Scratch {   // of one thread
  float* keys;     // [kChunk / 16, dim, 16]
  float* values;   // [kChunk, dim], when the cache is bf16
  float* scores;   // [kStrip, kChunk]
};

#if defined(__AVX2__)
inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load8(const bf16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
template <class T>
inline void transpose8(const T* in, int64_t stride, float* out) {  // 8 places x 8 dims -> out[dim * 16 + place]
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = load8(in + i * stride);
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * 16, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * 16, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
#else
template <class T>
inline void transpose8(const T* in, int64_t stride, float* out) {
  for (int d = 0; d < 8; ++d)
    for (int i = 0; i < 8; ++i) out[d * 16 + i] = to_float(in[i * stride + d]);
}
#endif

inline const float* widened(const float* in, float*, int64_t) { return in; }
inline const float* widened(const bf16* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) store(out + i, load(in + i));
  return out;
}

// Softmax weights of one row over `limit` places, in place: weights relative to the row's own largest score.
inline void weigh(float* scores, const uint8_t* mask, int64_t limit, float& largest, float& total) {
  F16 top = splat(-1e30f);
  for (int64_t j = 0; j < limit; j += 16) top = max(top, keep(load(scores + j), mask + j, -1e30f));
  largest = max_lanes(top);
  F16 sum = zero(), most = splat(largest);
  for (int64_t j = 0; j < limit; j += 16) {
    F16 p = keep(exp2(sub(load(scores + j), most)), mask + j, 0.0f);
    store(scores + j, p);
    sum = add(sum, p);
  }
  total = sum_lanes(sum);
}

// q [rows of the block, group, dim] scaled; keys, values [capacity, dim] from the chunk's first place on; mask of the
// block's row r at mask + rows[r] * mask_stride; `limit` places of the chunk are seen by some row (a multiple of 16).
template <class T>
void attend_chunk(const Heads& h, const float* q, int64_t rows, const T* keys, const T* values, const uint8_t* mask,
                  int64_t mask_stride, const int64_t* mask_rows, int64_t limit, int64_t pair0, int64_t chunk,
                  int64_t chunks, const Partial& out, const Scratch& my) {
  const int64_t D = h.dim, group = h.group(), pairs = rows * group, tile = 16 * D;
  for (int64_t j = 0; j < limit; j += 16)
    for (int64_t d = 0; d < D; d += 8) {
      transpose8(keys + j * D + d, D, my.keys + j * D + d * 16);
      transpose8(keys + (j + 8) * D + d, D, my.keys + j * D + d * 16 + 8);
    }
  const float* wide = widened(values, my.values, limit * D);
  for (int64_t strip = 0; strip < pairs; strip += kStrip) {
    const int64_t count = pairs - strip < kStrip ? pairs - strip : kStrip;
    const int blocks = blocks_of(count);
    // Score, then mix: a product with the transposed keys [dim x places], then one with the values [places x dim].
    const auto multiply = [&](const float* a, int64_t lda, const float* w, int64_t stride, int64_t tile_, int64_t cols,
                              int64_t tiles, auto&& to) {
      for (int block = 0; block < blocks; ++block) {
        const int64_t row = block_start(count, blocks, block);
        with_rows(int(block_start(count, blocks, block + 1) - row), [&](auto number) {
          constexpr int M = decltype(number)::value;
          int64_t t = 0;
          if constexpr (M <= kPairRows)
            for (; t + 1 < tiles; t += 2) {
              F16 sums[M][2];
              sums_of<Float32, M, 2, false>(a + row * lda, lda, w + t * tile_, stride, tile_, cols, nullptr, 0, sums);
              for (int m = 0; m < M; ++m) store(to(row + m, t), sums[m][0]), store(to(row + m, t + 1), sums[m][1]);
            }
          for (; t < tiles; ++t) {
            F16 sums[M][1];
            sums_of<Float32, M, 1, false>(a + row * lda, lda, w + t * tile_, stride, 0, cols, nullptr, 0, sums);
            for (int m = 0; m < M; ++m) store(to(row + m, t), sums[m][0]);
          }
        });
      }
    };
    multiply(q + strip * D, D, my.keys, 16, tile, D, limit / 16,
             [&](int64_t i, int64_t t) { return my.scores + i * kChunk + t * 16; });
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (pair0 + strip + i) * chunks + chunk;
      weigh(my.scores + i * kChunk, mask + mask_rows[(strip + i) / group] * mask_stride, limit, out.largest[at],
            out.sums[at]);
    }
    multiply(my.scores, kChunk, wide, D, 16, limit, D / 16, [&](int64_t i, int64_t t) {
      return out.values + ((pair0 + strip + i) * chunks + chunk) * D + t * 16;
    });
  }
}

// Joins the chunks of one (row, head) pair in order; out [dim].
inline void join(const Partial& part, int64_t pair, int64_t chunks, const int64_t* limits, int64_t D, float* out) {
  const float *largest = part.largest + pair * chunks, *sums = part.sums + pair * chunks;
  float top = -1e30f;
  for (int64_t c = 0; c < chunks; ++c)
    if (limits[c] && largest[c] > top) top = largest[c];
  float total = 0.0f;
  for (int64_t d = 0; d < D; d += 16) store(out + d, zero());
  for (int64_t c = 0; c < chunks; ++c) {
    if (!limits[c] || sums[c] == 0.0f) continue;
    float weight[16];
    store(weight, exp2(splat(largest[c] - top)));
    total = __builtin_fmaf(sums[c], weight[0], total);
    for (int64_t d = 0; d < D; d += 16)
      store(out + d, fma(splat(weight[0]), load(part.values + (pair * chunks + c) * D + d), load(out + d)));
  }
  for (int64_t d = 0; d < D; d += 16) store(out + d, div(load(out + d), splat(total)));
}

}  // namespace firesteel
