// Attention of the rows of many trees over their slots' caches, in chunks of 128 places.
//
// A chunk is one piece of work: for one slot and one key head it scores all rows (the query heads of the group are
// rows too), and leaves each row's maximum, sum and weighted values; a second pass joins the chunks in order. A row's
// result depends on what it sees and on nothing else: not on the rows beside it, nor on how far the mask is padded, nor
// on where a tree's branches put it. For that, the places of branches are worked on in the order and in the chunks that
// a chain would have had: "logical" below is a place of that chain.
#pragma once

#include "product.h"

namespace firesteel {

constexpr int64_t kChunk = 128;  // places
constexpr int64_t kWave = 64;    // rows whose chunks are held at once
constexpr int64_t kStrip = 96;   // scores held at once, in (row, head) pairs: 48 KB and more

struct Block {  // up to kWave rows of one slot, neighbours in the sorted order
  int64_t slot, first, rows;
};

struct Heads {
  int64_t heads, kv_heads, dim;
  int64_t group() const { return heads / kv_heads; }
};

struct Partial {       // of the rows of a wave; pair = (kv_head * rows of a wave + row) * group + head
  float* largest;      // [pairs, chunks]
  float* sums;         // [pairs, chunks]
  float* values;       // [pairs, chunks, dim]
};

struct Scratch {   // of one thread
  float *keys, *values;      // [most, dim], when the cache is bf16
  float *scores, *physical;  // [kStrip, most]
  int64_t most;              // places of a piece of work: a chunk and the branches that begin in it
};

// Where a row of a tree sees the branches' places, counted from the first place of its chunk.
struct Path {
  const int32_t* places;  // [count], ascending
  int64_t start, count;   // logical places start, ..., start + count - 1
};

// Products of one query with the keys of 8 places, each added up lane by lane and then across the lanes: the same way
// for every row and place. `Dim` is the length of a head when it is known in advance, or 0.
#if defined(__AVX512F__)
template <int Some, int Others>  // two quarters of a and two of b, plus the other two of each
inline __m512 add_quarters(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, Some), _mm512_shuffle_f32x4(a, b, Others));
}
template <int Dim>
inline void score8(const float* q, const float* keys, int64_t dim, float* scores) {
  if constexpr (Dim) dim = Dim;
  __m512 s[8];
  each<8>([&](auto i) FIRESTEEL_INLINE { s[i] = _mm512_setzero_ps(); });
  for (int64_t d = 0; d < dim; d += 16) {
    const __m512 x = _mm512_loadu_ps(q + d);
    each<8>([&](auto i) FIRESTEEL_INLINE { s[i] = _mm512_fmadd_ps(x, _mm512_loadu_ps(keys + i * dim + d), s[i]); });
  }
  // 16 lanes of 8 sums to 4 lanes of each, to 2, to 1: quarter k of `even` belongs to sum 2k, of `odd` to 2k + 1.
  const auto halves = add_quarters<0x44, 0xee>;  // 0 and 1, 2 and 3
  const auto pairs = add_quarters<0x88, 0xdd>;   // 0 and 2, 1 and 3
  const __m512 even = pairs(halves(s[0], s[2]), halves(s[4], s[6]));
  const __m512 odd = pairs(halves(s[1], s[3]), halves(s[5], s[7]));
  const __m512 both = _mm512_add_ps(_mm512_unpacklo_ps(even, odd), _mm512_unpackhi_ps(even, odd));
  const __m512 sums = _mm512_add_ps(both, _mm512_permute_ps(both, 0x4e));  // the first two lanes of each quarter count
  const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_ps(scores, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sums)));
}
#elif defined(__AVX2__)
inline __m256 add_halves(__m256 a, __m256 b) {  // a, b [x0 x1 x2 x3 | ...] -> [a0+a2, b0+b2, a1+a3, b1+b3 | ...]
  return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}
template <int Dim>
inline void score8(const float* q, const float* keys, int64_t dim, float* scores) {
  if constexpr (Dim) dim = Dim;
  __m256 s[8];
  each<8>([&](auto i) FIRESTEEL_INLINE { s[i] = _mm256_setzero_ps(); });
  for (int64_t d = 0; d < dim; d += 8) {
    const __m256 x = _mm256_loadu_ps(q + d);
    each<8>([&](auto i) FIRESTEEL_INLINE { s[i] = _mm256_fmadd_ps(x, _mm256_loadu_ps(keys + i * dim + d), s[i]); });
  }
  const __m256 low = add_halves(add_halves(s[0], s[2]), add_halves(s[1], s[3]));
  const __m256 high = add_halves(add_halves(s[4], s[6]), add_halves(s[5], s[7]));
  _mm256_storeu_ps(scores, _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                                         _mm256_permute2f128_ps(low, high, 0x31)));
}
#else
template <int Dim>
inline void score8(const float* q, const float* keys, int64_t dim, float* scores) {
  for (int64_t i = 0; i < 8; ++i) {
    F16 sum = zero();
    for (int64_t d = 0; d < dim; d += 16) sum = fma(load(q + d), load(keys + i * dim + d), sum);
    scores[i] = sum_lanes(sum);
  }
}
#endif

template <int Dim>
inline void score(const float* q, int64_t count, const float* keys, int64_t dim, float* scores, int64_t stride) {
  for (int64_t i = 0; i < count; ++i) score8<Dim>(q + i * dim, keys, dim, scores + i * stride);
}

inline const float* widened(const float* in, float*, int64_t) { return in; }
inline const float* widened(const bf16* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) store(out + i, load(in + i));
  return out;
}

// Softmax weights of one row over `limit` places, in place: weights relative to the row's own largest score. `All`: the
// row sees every one of these places, as it does in all but the last of its context's chunks.
template <bool All>
inline void weigh_row(float* scores, const uint8_t* mask, int64_t limit, float& largest, float& total) {
  const auto seen = [&](F16 x, int64_t j, float other) { return All ? x : keep(x, mask + j, other); };
  F16 top = splat(-1e30f);
  for (int64_t j = 0; j < limit; j += 16) top = max(top, seen(load(scores + j), j, -1e30f));
  largest = max_lanes(top);
  F16 sum = zero(), most = splat(largest);
  for (int64_t j = 0; j < limit; j += 16) {
    F16 p = seen(exp2(sub(load(scores + j), most)), j, 0.0f);
    store(scores + j, p);
    sum = add(sum, p);
  }
  total = sum_lanes(sum);
}

inline void weigh(float* scores, const uint8_t* mask, int64_t limit, float& largest, float& total) {
  uint64_t all = 0x0101010101010101u, eight;
  for (int64_t j = 0; j < limit; j += 8) std::memcpy(&eight, mask + j, 8), all &= eight;
  if (all == 0x0101010101010101u)
    weigh_row<true>(scores, mask, limit, largest, total);
  else
    weigh_row<false>(scores, mask, limit, largest, total);
}

// out[i] = sum over places of scores[i][place] * values[place], for `count` rows; `stride` between rows of out.
inline void mix(const float* scores, int64_t lds, const float* values, int64_t count, int64_t limit, int64_t D,
                float* out, int64_t stride) {
  const int blocks = blocks_of(count);
  const auto columns = [&](int64_t d, auto tiles) {  // a strip of values stays in the first cache for all rows
    constexpr int T = decltype(tiles)::value;
    for (int block = 0; block < blocks; ++block) {
      const int64_t row = block_start(count, blocks, block);
      with_rows<T == 2 ? kPairRows : kMaxRows>(int(block_start(count, blocks, block + 1) - row), [&](auto number) {
        constexpr int M = decltype(number)::value;
        F16 sums[M][T];
        sums_of<Float32, M, T>(Floats{scores + row * lds, lds}, values + d, D, 16, limit, Nothing{}, sums);
        for (int m = 0; m < M; ++m)
          for (int t = 0; t < T; ++t) store(out + (row + m) * stride + d + t * 16, sums[m][t]);
      });
    }
  };
  int64_t d = 0;
  if (count <= kPairRows || kPairRows == kMaxRows)
    for (; d + 32 <= D; d += 32) columns(d, std::integral_constant<int, 2>{});
  for (; d < D; d += 16) columns(d, std::integral_constant<int, 1>{});
}

template <class T>
inline void fetch(const T* from, int64_t count) {
  const char* p = reinterpret_cast<const char*>(from);
  for (int64_t i = 0; i < count * int64_t(sizeof(T)); i += 64) __builtin_prefetch(p + i, 0, 2);
}

// Brings a row's scores of branches, which begin at `fork`, to their logical places; the rest is not looked at.
inline void gather(float* scores, const Path& path) {
  for (int64_t j = 0; j < path.count; ++j) scores[path.start + j] = scores[path.places[j]];  // never to the right
}

// The other way, for the weights of the logical places from `from` to `to`: zero wherever else there is a place.
inline void spread(const float* weights, const Path& path, int64_t fork, int64_t limit, int64_t from, int64_t to,
                   float* physical) {
  const int64_t shared = std::max(from, std::min(fork, to));
  std::copy(weights + from, weights + shared, physical + from);
  std::fill(physical + shared, physical + limit, 0.0f);
  for (int64_t j = 0; j < path.count; ++j)
    if (path.start + j >= from && path.start + j < to) physical[path.places[j]] = weights[path.start + j];
}

// One piece of work: a chunk, or the last chunk of the context with all branches, whose logical places may reach into
// the next chunk. q [rows of the block, group, dim] scaled; keys, values [capacity, dim] from the piece's first place
// on; the block's row r has its (logical) mask at mask + mask_rows[r] * mask_stride and its path in paths[r];
// `limit` places are seen by some row (a multiple of 16), those from `fork` on are branches'.
template <class T>
void attend_chunk(const Heads& h, const float* q, int64_t rows, const T* keys, const T* values, const uint8_t* mask,
                  int64_t mask_stride, const int64_t* mask_rows, const Path* paths, int64_t limit, int64_t fork,
                  int64_t pair0, int64_t chunk, int64_t chunks, const Partial& out, const Scratch& my) {
  const int64_t D = h.dim, group = h.group(), pairs = rows * group;
  const float* k = widened(keys, my.keys, limit * D);
  const float* v = nullptr;
  for (int64_t strip = 0; strip < pairs; strip += kStrip) {
    const int64_t count = pairs - strip < kStrip ? pairs - strip : kStrip;
    for (int64_t j = 0; j < limit; j += 8) {
      if (!v) fetch(values + j * D, 8 * D);  // wanted next: memory works while we count
      const auto scorer = D == 64 ? score<64> : D == 128 ? score<128> : score<0>;
      scorer(q + strip * D, count, k + j * D, D, my.scores + j, my.most);
    }
    if (!v) v = widened(values, my.values, limit * D);
    const auto scores = [&](int64_t i) { return my.scores + i * my.most; };
    const auto row = [&](int64_t i) { return (strip + i) / group; };
    for (int64_t i = 0; i < count && fork < limit; ++i) gather(scores(i), paths[row(i)]);
    for (int64_t from = 0, c = chunk; from < limit; from += kChunk, ++c) {
      const int64_t to = std::min(from + kChunk, limit);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = (pair0 + strip + i) * chunks + c;
        weigh(scores(i) + from, mask + mask_rows[row(i)] * mask_stride + from, to - from, out.largest[at],
              out.sums[at]);
        if (fork < limit) spread(scores(i), paths[row(i)], fork, limit, from, to, my.physical + i * my.most);
      }
      mix((fork < limit ? my.physical : my.scores) + from, my.most, v + from * D, count, limit - from, D,
          out.values + ((pair0 + strip) * chunks + c) * D, chunks * D);
    }
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
