// Products of a few rows with a large matrix, its weights packed in tiles of 16 outputs.
//
//   fp32   tile [K][16]            sums in fp32, one fused multiply-add per k, in order of k
//   bf16   tile [K/2][16][2]       weights widened on the fly, the same sums
//   int8   tile [K/2][16][2]       weights times 16-bit activations, sums in int32: exact, so in any order
//
// Why 16-bit activations: `pmaddwd` (and `vpdpwssd`) multiplies pairs of int16 into int32 at twice the rate of fp32,
// on AVX2 as on AVX-512, and never saturates; the u8 x s8 instruction of AVX2 does. With |w| <= 127 and
// |a| <= (2^31 - 1) / (127 K) no sum can overflow, and the activations keep 11 bits or more: only the weights lose.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "simd.h"

namespace firesteel {

enum Kind : int32_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2 };

struct Matrix {           // mirrored by ctypes in native.py
  const void* tiles;      // [outputs / 16] tiles
  const float* scales;    // int8: [outputs]
  const float* bias;      // [outputs] or null
  int64_t outputs, cols;  // padded: outputs to 16, cols to 2
  int32_t kind;
  int32_t limit;  // int8: largest magnitude of a quantised activation
};

// The input rows of a product: fp32, or int16 with one scale per row.
struct Rows {
  const float* floats;
  const int16_t* ints;
  const float* scales;
  int64_t stride;
};

// Quantises `count` numbers (a multiple of 16) to integers of at most `limit`; the scale that undoes it.
inline float quantise(const float* x, int64_t count, int32_t limit, int16_t* out) {
  F16 top = zero();
  for (int64_t k = 0; k < count; k += 16) top = max(top, abs(load(x + k)));
  const float largest = max_lanes(top);
  const F16 inverse = splat(largest > 0.0f ? float(limit) / largest : 0.0f);
  for (int64_t k = 0; k < count; k += 16) store_rounded(out + k, mul(load(x + k), inverse));
  return largest / float(limit);
}

#define FIRESTEEL_INLINE __attribute__((always_inline))

// f(0), ..., f(N - 1) with constant arguments: a loop may be unrolled too late for its sums to live in registers.
template <class F, int... I>
FIRESTEEL_INLINE inline void each_of(F&& f, std::integer_sequence<int, I...>) {
  (f(std::integral_constant<int, I>{}), ...);
}
template <int N, class F>
FIRESTEEL_INLINE inline void each(F&& f) {
  each_of(f, std::make_integer_sequence<int, N>{});
}

struct Float32 {
  using A = float;
  using W = float;
  using Sum = F16;
  static constexpr int step = 1, unroll = 1, max_rows = kMaxRows, pair_rows = kPairRows;
  static Sum start() { return zero(); }
  static F16 finish(Sum s) { return s; }
  template <int M, int T>
  FIRESTEEL_INLINE static void accumulate(const A* a, int64_t lda, const W* w, int64_t tile, Sum (&sums)[M][T]) {
    F16 b[T];
    each<T>([&](auto t) FIRESTEEL_INLINE { b[t] = load(w + t * tile); });
    each<M>([&](auto m) FIRESTEEL_INLINE {
      F16 x = splat(a[m * lda]);
      each<T>([&](auto t) FIRESTEEL_INLINE { sums[m][t] = pin(fma(x, b[t], sums[m][t])); });
    });
  }
};

struct Bfloat16 {
  using A = float;
  using W = bf16;
  using Sum = F16;
  static constexpr int step = 2, unroll = 1, max_rows = kMaxRowsBfloat16, pair_rows = kPairRowsNarrow;
  static Sum start() { return zero(); }
  static F16 finish(Sum s) { return s; }
  template <int M, int T>
  FIRESTEEL_INLINE static void accumulate(const A* a, int64_t lda, const W* w, int64_t tile, Sum (&sums)[M][T]) {
    each<T>([&](auto t) FIRESTEEL_INLINE {  // one half of the pairs at a time: both would not fit the registers
      const W* p = w + t * tile;
      const F16 even = load_even(p);
      each<M>([&](auto m) FIRESTEEL_INLINE { sums[m][t] = pin(fma(splat(a[m * lda]), even, sums[m][t])); });
      const F16 odd = load_odd(fresh(p));
      each<M>([&](auto m) FIRESTEEL_INLINE { sums[m][t] = pin(fma(splat(a[m * lda + 1]), odd, sums[m][t])); });
    });
  }
};

struct Int8 {
  using A = int16_t;
  using W = int8_t;
  using Sum = I16;
  static constexpr int step = 2, unroll = 2, max_rows = kMaxRows, pair_rows = kPairRowsNarrow;
  static Sum start() { return no_sum(); }
  static F16 finish(const Sum& s) { return to_float(s); }
  template <int M, int T>
  FIRESTEEL_INLINE static void accumulate(const A* a, int64_t lda, const W* w, int64_t tile, Sum (&sums)[M][T]) {
    I16 b[T];
    each<T>([&](auto t) FIRESTEEL_INLINE { b[t] = widen(w + t * tile); });
    each<M>([&](auto m) FIRESTEEL_INLINE {
      I16 x = splat_pair(a + m * lda);
      each<T>([&](auto t) FIRESTEEL_INLINE { sums[m][t] = pin(dot_pairs(sums[m][t], b[t], x)); });
    });
  }
};

// Sums of M rows with T tiles. `stride` is the distance of successive k (or pairs of k) in w, in elements;
// `ahead` walks a part of the weights that will be wanted next, `ahead_step` bytes per step, so that memory is busy
// during all blocks of rows and not only during the first.
template <class K, int M, int T, bool Ahead>
FIRESTEEL_INLINE inline void sums_of(const typename K::A* a, int64_t lda, const typename K::W* w, int64_t stride,
                                     int64_t tile, int64_t cols, const char* ahead, int64_t ahead_step,
                                     F16 (&out)[M][T]) {
  typename K::Sum sums[M][T];
  each<M>([&](auto m) FIRESTEEL_INLINE { each<T>([&](auto t) FIRESTEEL_INLINE { sums[m][t] = K::start(); }); });
  for (int64_t k = 0; k < cols; k += K::step * K::unroll)
    each<K::unroll>([&](auto u) FIRESTEEL_INLINE {
      K::template accumulate<M, T>(a + k + u * K::step, lda, w, tile, sums);
      w += stride;
      if constexpr (Ahead) {
        __builtin_prefetch(ahead);
        ahead += ahead_step;
      }
    });
  each<M>([&](auto m) FIRESTEEL_INLINE {
    each<T>([&](auto t) FIRESTEEL_INLINE { out[m][t] = K::finish(sums[m][t]); });
  });
}

// Calls `body` with the number of rows as a constant.
template <int M, class Body>
inline void with_rows(int rows, Body&& body) {
  if constexpr (M == 1) {
    body(std::integral_constant<int, 1>{});
  } else {
    if (rows == M) return body(std::integral_constant<int, M>{});
    with_rows<M - 1>(rows, body);
  }
}

inline int blocks_of(int64_t n, int most = kMaxRows) { return int((n + most - 1) / most); }
inline int64_t block_start(int64_t n, int blocks, int block) { return n * block / blocks; }  // even blocks: 8 = 4 + 4

// One pair of tiles (first, first + 1) for all rows; emit(row, tile, values) gets 16 outputs of one row.
template <class K, class Emit>
inline void pair_of_tiles(const Matrix& m, const typename K::A* a, const Rows& x, int64_t n, int64_t first,
                          Emit&& emit) {
  using W = typename K::W;
  const int64_t size = m.cols * 16;
  const int64_t tiles = m.outputs / 16 - first < 2 ? 1 : 2;
  const W* w = static_cast<const W*>(m.tiles) + first * size;
  const auto finish = [&](F16 sum, int64_t row, int64_t tile) {
    if constexpr (std::is_same_v<K, Int8>) sum = mul(mul(sum, splat(x.scales[row])), load(m.scales + tile * 16));
    if (m.bias) sum = add(sum, load(m.bias + tile * 16));
    emit(row, tile, sum);
  };
  if (n <= K::pair_rows && tiles == 2) {
    with_rows<K::pair_rows>(int(n), [&](auto count) {
      constexpr int M = decltype(count)::value;
      F16 out[M][2];
      const auto* ahead = reinterpret_cast<const char*>(w + 2 * size);  // past the last tile a prefetch is a no-op
      sums_of<K, M, 2, true>(a, x.stride, w, 16 * K::step, size, m.cols, ahead, 2 * 16 * K::step * sizeof(W), out);
      for (int i = 0; i < M; ++i) finish(out[i][0], i, first), finish(out[i][1], i, first + 1);
    });
    return;
  }
  // A tile stays in the first cache while all blocks of rows pass over it; each fetches its part of the next tile.
  const auto pass = [&](auto kind, const auto* tile, int64_t t) {
    using Kind = decltype(kind);
    const int blocks = blocks_of(n, Kind::max_rows);
    const int64_t part = size * int64_t(sizeof(W)) / blocks;
    for (int block = 0; block < blocks; ++block) {
      const int64_t row = block_start(n, blocks, block), rows = block_start(n, blocks, block + 1) - row;
      with_rows<Kind::max_rows>(int(rows), [&](auto count) {
        constexpr int M = decltype(count)::value;
        F16 out[M][1];
        const auto* ahead = reinterpret_cast<const char*>(w + size) + part * block;
        sums_of<Kind, M, 1, true>(a + row * x.stride, x.stride, tile, 16 * Kind::step, 0, m.cols, ahead,
                                  part * Kind::step / m.cols, out);
        for (int i = 0; i < M; ++i) finish(out[i][0], row + i, first + t);
      });
    }
  };
  for (int64_t t = 0; t < tiles; ++t, w += size) {
    if constexpr (std::is_same_v<K, Bfloat16>) {
      if (n >= kWidenFrom) {  // the same sums in the same order, from weights widened once for all blocks
        thread_local std::vector<float> wide;
        if (int64_t(wide.size()) < size) wide.resize(size);
        for (int64_t i = 0; i < size; i += 32) {
          store(wide.data() + i, load_even(w + i));
          store(wide.data() + i + 16, load_odd(w + i));
        }
        pass(Float32{}, wide.data(), t);
        continue;
      }
    }
    pass(K{}, w, t);
  }
}

// The whole product, shared out among the threads of the enclosing parallel region; ends with a barrier.
template <class Emit>
inline void product(const Matrix& m, const Rows& x, int64_t n, Emit&& emit) {
  const int64_t pairs = (m.outputs / 16 + 1) / 2;
#pragma omp for schedule(static)
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (m.kind == kInt8)
      pair_of_tiles<Int8>(m, x.ints, x, n, 2 * pair, emit);
    else if (m.kind == kBfloat16)
      pair_of_tiles<Bfloat16>(m, x.floats, x, n, 2 * pair, emit);
    else
      pair_of_tiles<Float32>(m, x.floats, x, n, 2 * pair, emit);
  }
}

}  // namespace firesteel
