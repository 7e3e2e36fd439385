// Products of a few rows with a large matrix, its weights packed in tiles of 16 outputs.
//
//   fp32   tile [K][16]            sums in fp32, one fused multiply-add per k, in order of k
//   bf16   tile [K/2][16][2]       weights widened on the fly, the same sums
//   int8   tile [K/S][16][S]       codes of weights times codes of activations, S of them added by one instruction
//
// int8: a weight's code counts its output's scale, an activation's code the scale of its 32 columns. The sum over 32
// columns is an exact int32; it is scaled and added to the fp32 sum of the groups before it, in order.
// With VNNI S is 4: `vpdpbusd` multiplies unsigned by signed bytes, so weights are stored with 128 added, and a group's
// sum starts at -128 times the sum of its activations. Without, S is 2: `pmaddwd` on codes widened to 16 bits, at half
// the rate; the 8-bit instruction of AVX2 saturates.
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
  int64_t outputs, cols;  // padded to 16
  int32_t kind;
};

constexpr int64_t kGroup = 32;  // columns that share an activation's scale
constexpr float kCodeMax = 127;

inline int64_t groups_of(int64_t cols) { return (cols + kGroup - 1) / kGroup; }

// Rows of fp32 and, for int8, of codes.
struct Floats {
  using Number = float;
  const float* a;
  int64_t stride;
  Floats from(int64_t row) const { return {a + row * stride, stride}; }
};
struct Codes {
  using Number = Code;
  Code* a;           // [rows, stride]
  float* scales;     // [rows, groups]
  int32_t* offsets;  // [rows, groups] at which a group's sums start
  int64_t stride, groups;
  Codes from(int64_t row) const {
    return {a + row * stride, scales + row * groups, offsets + row * groups, stride, groups};
  }

  // Quantises `cols` numbers (a multiple of 16) to row `row`.
  void put(int64_t row, const float* x, int64_t cols) const {
    const Codes to = from(row);
    for (int64_t g = 0, k = 0; k < cols; ++g, k += kGroup) {
      const int64_t end = k + kGroup < cols ? k + kGroup : cols;
      F16 top = zero();
      for (int64_t j = k; j < end; j += 16) top = max(top, abs(load(x + j)));
      const float largest = max_lanes(top);
      const F16 inverse = splat(largest > 0.0f ? kCodeMax / largest : 0.0f);
      int32_t offset = 0;
      for (int64_t j = k; j < end; j += 16) {
        store_rounded(to.a + j, mul(load(x + j), inverse));
        if constexpr (kCodeOffset) offset -= kCodeOffset * sum_codes(to.a + j);
      }
      to.scales[g] = largest / kCodeMax;
      to.offsets[g] = offset;
    }
  }
};

// The input rows of a product.
struct Rows {
  Floats floats;
  Codes codes;
};

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
  using In = Floats;
  using W = float;
  static constexpr int step = 1, max_rows = kMaxRows, pair_rows = kPairRows;
  template <int M, int T>
  FIRESTEEL_INLINE static void accumulate(const float* a, int64_t lda, const W* w, int64_t tile, F16 (&sums)[M][T]) {
    F16 b[T];
    each<T>([&](auto t) FIRESTEEL_INLINE { b[t] = load(w + t * tile); });
    each<M>([&](auto m) FIRESTEEL_INLINE {
      F16 x = splat(a[m * lda]);
      each<T>([&](auto t) FIRESTEEL_INLINE { sums[m][t] = pin(fma(x, b[t], sums[m][t])); });
    });
  }
};

struct Bfloat16 {
  using In = Floats;
  using W = bf16;
  static constexpr int step = 2, max_rows = kMaxRowsBfloat16, pair_rows = kPairRowsNarrow;
  template <int M, int T>
  FIRESTEEL_INLINE static void accumulate(const float* a, int64_t lda, const W* w, int64_t tile, F16 (&sums)[M][T]) {
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
  using In = Codes;
  using W = int8_t;
  static constexpr int step = kCodesPerStep, max_rows = kMaxRows, pair_rows = kPairRowsNarrow;
  template <int M, int T>
  FIRESTEEL_INLINE static void accumulate(const Code* a, int64_t lda, const W* w, int64_t tile, I16 (&sums)[M][T]) {
    I16 b[T];
    each<T>([&](auto t) FIRESTEEL_INLINE { b[t] = load_codes(w + t * tile); });
    each<M>([&](auto m) FIRESTEEL_INLINE {
      const I16 x = splat_codes(a + m * lda);
      each<T>([&](auto t) FIRESTEEL_INLINE { sums[m][t] = pin(dot(sums[m][t], b[t], x)); });
    });
  }
};

// Walks a part of the weights that will be wanted next, `step` bytes at a time, so that memory is busy during all
// blocks of rows and not only during the first. `Nothing` is wanted next where all is in the first cache.
struct Ahead {
  const char* at;
  int64_t step;
  void walk() { __builtin_prefetch(at), at += step; }
};
struct Nothing {
  void walk() {}
};

// Sums of M rows with T tiles; `stride` is the distance of successive steps of k in w, in elements.
template <class K, int M, int T, class Next>
FIRESTEEL_INLINE inline void sums_of(Floats in, const typename K::W* w, int64_t stride, int64_t tile, int64_t cols,
                                     Next ahead, F16 (&out)[M][T]) {
  F16 sums[M][T];  // of its own: `out` may be seen from elsewhere, and a register may not
  each<M>([&](auto m) FIRESTEEL_INLINE { each<T>([&](auto t) FIRESTEEL_INLINE { sums[m][t] = zero(); }); });
  for (int64_t k = 0; k < cols; k += K::step, w += stride) {
    K::template accumulate<M, T>(in.a + k, in.stride, w, tile, sums);
    ahead.walk();
  }
  each<M>([&](auto m) FIRESTEEL_INLINE { each<T>([&](auto t) FIRESTEEL_INLINE { out[m][t] = sums[m][t]; }); });
}
template <class K, int M, int T, class Next>
FIRESTEEL_INLINE inline void sums_of(Codes in, const int8_t* w, int64_t stride, int64_t tile, int64_t cols, Next ahead,
                                     F16 (&out)[M][T]) {
  each<M>([&](auto m) FIRESTEEL_INLINE { each<T>([&](auto t) FIRESTEEL_INLINE { out[m][t] = zero(); }); });
  const auto group = [&](int64_t g, auto count) FIRESTEEL_INLINE {
    I16 sums[M][T];
    each<M>([&](auto m) FIRESTEEL_INLINE {
      const I16 start = splat(in.offsets[m * in.groups + g]);
      each<T>([&](auto t) FIRESTEEL_INLINE { sums[m][t] = start; });
    });
    each<decltype(count)::value / K::step>([&](auto u) FIRESTEEL_INLINE {
      K::template accumulate<M, T>(in.a + g * kGroup + u * K::step, in.stride, w, tile, sums);
      w += stride;
      ahead.walk();
    });
    each<M>([&](auto m) FIRESTEEL_INLINE {
      const F16 scale = splat(in.scales[m * in.groups + g]);
      each<T>([&](auto t) FIRESTEEL_INLINE { out[m][t] = fma(to_float(sums[m][t]), scale, out[m][t]); });
    });
  };
  for (int64_t g = 0; g < cols / kGroup; ++g) group(g, std::integral_constant<int, kGroup>{});
  if (cols % kGroup) group(cols / kGroup, std::integral_constant<int, 16>{});
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
inline void pair_of_tiles(const Matrix& m, const typename K::In& x, int64_t n, int64_t first, Emit&& emit) {
  using W = typename K::W;
  const int64_t size = m.cols * 16;
  const int64_t tiles = m.outputs / 16 - first < 2 ? 1 : 2;
  const W* w = static_cast<const W*>(m.tiles) + first * size;
  const auto finish = [&](F16 sum, int64_t row, int64_t tile) {
    if constexpr (std::is_same_v<K, Int8>) sum = mul(sum, load(m.scales + tile * 16));
    if (m.bias) sum = add(sum, load(m.bias + tile * 16));
    emit(row, tile, sum);
  };
  // Tiles stay in the nearest caches while all blocks of rows pass over them; each fetches its part of the next tiles.
  const auto pass = [&](auto kind, auto at_once, const auto* weights, int64_t t) {
    using Kind = decltype(kind);
    constexpr int T = decltype(at_once)::value, most = T == 2 ? Kind::pair_rows : Kind::max_rows;
    const int blocks = blocks_of(n, most);
    const int64_t part = T * size * int64_t(sizeof(W)) / blocks;
    for (int block = 0; block < blocks; ++block) {
      const int64_t row = block_start(n, blocks, block), rows = block_start(n, blocks, block + 1) - row;
      with_rows<most>(int(rows), [&](auto count) {
        constexpr int M = decltype(count)::value;
        F16 out[M][T];
        const char* next = reinterpret_cast<const char*>(w + (t + T) * size) + part * block;  // past the end: no harm
        sums_of<Kind, M, T>(x.from(row), weights, 16 * Kind::step, size, m.cols,
                            Ahead{next, part * Kind::step / m.cols}, out);
        for (int i = 0; i < M; ++i)
          for (int u = 0; u < T; ++u) finish(out[i][u], row + i, first + t + u);
      });
    }
  };
  constexpr std::integral_constant<int, 1> one{};
  constexpr std::integral_constant<int, 2> two{};
  if (tiles == 2 && (n <= K::pair_rows || K::pair_rows == K::max_rows)) return pass(K{}, two, w, 0);
  for (int64_t t = 0; t < tiles; ++t) {
    const W* tile = w + t * size;
    if constexpr (std::is_same_v<K, Bfloat16>) {
      if (n >= kWidenFrom) {  // the same sums in the same order, from weights widened once for all blocks
        thread_local std::vector<float> wide;
        if (int64_t(wide.size()) < size) wide.resize(size);
        for (int64_t i = 0; i < size; i += 32) {
          store(wide.data() + i, load_even(tile + i));
          store(wide.data() + i + 16, load_odd(tile + i));
        }
        pass(Float32{}, one, wide.data(), t);
        continue;
      }
    }
    pass(K{}, one, tile, t);
  }
}

// The whole product, shared out among the threads of the enclosing parallel region; ends with a barrier.
template <class Emit>
inline void product(const Matrix& m, const Rows& x, int64_t n, Emit&& emit) {
  const int64_t pairs = (m.outputs / 16 + 1) / 2;
#pragma omp for schedule(static)
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (m.kind == kInt8)
      pair_of_tiles<Int8>(m, x.codes, n, 2 * pair, emit);
    else if (m.kind == kBfloat16)
      pair_of_tiles<Bfloat16>(m, x.floats, n, 2 * pair, emit);
    else
      pair_of_tiles<Float32>(m, x.floats, n, 2 * pair, emit);
  }
}

}  // namespace firesteel
