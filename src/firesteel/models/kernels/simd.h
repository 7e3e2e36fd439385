// Sixteen lanes, three ways: AVX-512, AVX2, and plain loops for every other processor.
//
// F16 holds 16 floats and I16 holds 16 int32 sums. All arithmetic that decides a result is spelled out (explicit fused
// multiply-adds, a fixed order in every reduction), and the build turns contraction off: the same row gives the same
// bits whatever else is computed beside it. `pin` keeps a running sum in its register: left alone, GCC computes all
// products of a step first, runs out of registers and spills the sums, at half the speed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace firesteel {

using bf16 = uint16_t;

inline float to_float(bf16 x) {
  uint32_t bits = uint32_t(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
inline float to_float(float x) { return x; }

inline bf16 to_bf16(float x) {  // round to nearest, ties to even; NaN is not expected
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bf16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The same pointer, of which the compiler knows nothing: it loads again instead of holding a value in a register.
template <class T>
inline const T* fresh(const T* p) {
#if defined(__GNUC__)
  asm volatile("" : "+r"(p));
#endif
  return p;
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

constexpr int kMaxRows = 12;
constexpr int kPairRows = 12;  // two tiles at once: 24 of 32 registers are sums, and an activation is loaded for both
constexpr int kPairRowsNarrow = 12;
constexpr int kMaxRowsBfloat16 = 12;
constexpr int64_t kWidenFrom = INT64_MAX;
struct F16 { __m512 v; };
struct I16 { __m512i v; };
inline F16 pin(F16 x) { asm volatile("" : "+v"(x.v)); return x; }
inline I16 pin(I16 x) { asm volatile("" : "+v"(x.v)); return x; }

inline F16 zero() { return {_mm512_setzero_ps()}; }
inline F16 splat(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 x) { _mm512_storeu_ps(p, x.v); }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
inline F16 load(const bf16* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// Of 16 pairs of bf16, the first halves and the second halves.
inline F16 load_even(const bf16* p) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))}; }
inline F16 load_odd(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(int(0xffff0000u))))};
}
inline I16 splat(int32_t x) { return {_mm512_set1_epi32(x)}; }
#if defined(__AVX512VNNI__)
#define FIRESTEEL_VNNI
inline I16 load_codes(const int8_t* p) { return {_mm512_loadu_si512(p)}; }
inline I16 splat_codes(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return {_mm512_set1_epi32(four)};
}
inline I16 dot(I16 sum, I16 weights, I16 x) { return {_mm512_dpbusd_epi32(sum.v, weights.v, x.v)}; }
inline void store_rounded(int8_t* p, F16 x) {
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}
#else
inline I16 load_codes(const int8_t* p) { return {_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p))}; }
inline I16 splat_codes(const int16_t* p) {
  int32_t pair;
  std::memcpy(&pair, p, 4);
  return {_mm512_set1_epi32(pair)};
}
inline I16 dot(I16 sum, I16 weights, I16 x) { return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(weights.v, x.v))}; }
inline void store_rounded(int16_t* p, F16 x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x.v)));
}
#endif
inline F16 to_float(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline F16 keep(F16 x, const uint8_t* mask, float other) {  // mask bytes are 0 or 1
  __mmask16 on = _mm_test_epi8_mask(_mm_loadu_si128((const __m128i*)mask), _mm_set1_epi8(1));
  return {_mm512_mask_blend_ps(on, _mm512_set1_ps(other), x.v)};
}
inline F16 power_of_two(F16 x, F16& whole) {  // 2^round(x), and round(x)
  __m512i n = _mm512_cvtps_epi32(x.v);
  whole.v = _mm512_cvtepi32_ps(n);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23))};
}

#elif defined(__AVX2__) && defined(__FMA__)

constexpr int kMaxRows = 6;   // 12 of 16 registers are sums
constexpr int kPairRows = 3;
constexpr int kPairRowsNarrow = 2;       // widened weights take registers of their own
constexpr int kMaxRowsBfloat16 = 4;   // as do the two halves of bf16 pairs;
constexpr int64_t kWidenFrom = 24;    // from so many rows, widening them once pays
struct F16 { __m256 a, b; };
struct I16 { __m256i a, b; };
inline F16 pin(F16 x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); return x; }
inline I16 pin(I16 x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); return x; }

inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F16 splat(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)}; }
inline F16 add(F16 a, F16 b) { return {_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)}; }
inline F16 sub(F16 a, F16 b) { return {_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)}; }
inline F16 mul(F16 a, F16 b) { return {_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)}; }
inline F16 div(F16 a, F16 b) { return {_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)}; }
inline F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)}; }
inline F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b)}; }
inline F16 abs(F16 a) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.a), _mm256_andnot_ps(sign, a.b)};
}
inline F16 load(const bf16* p) {
  __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
inline F16 load_even(const bf16* p) {
  __m256i x = _mm256_loadu_si256((const __m256i*)p), y = _mm256_loadu_si256((const __m256i*)(p + 16));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(y, 16))};
}
inline F16 load_odd(const bf16* p) {
  __m256i x = _mm256_loadu_si256((const __m256i*)p), y = _mm256_loadu_si256((const __m256i*)(p + 16));
  __m256i high = _mm256_set1_epi32(int(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(x, high)), _mm256_castsi256_ps(_mm256_and_si256(y, high))};
}
inline I16 splat(int32_t x) { __m256i v = _mm256_set1_epi32(x); return {v, v}; }
inline I16 load_codes(const int8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(p + 16)))};
}
inline I16 splat_codes(const int16_t* p) {
  int32_t pair;
  std::memcpy(&pair, p, 4);
  __m256i v = _mm256_set1_epi32(pair);
  return {v, v};
}
inline I16 dot(I16 sum, I16 a, I16 b) {
#if defined(__AVXVNNI__)
  return {_mm256_dpwssd_avx_epi32(sum.a, a.a, b.a), _mm256_dpwssd_avx_epi32(sum.b, a.b, b.b)};
#else
  return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(a.a, b.a)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(a.b, b.b))};
#endif
}
inline F16 to_float(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline void store_rounded(int16_t* p, F16 x) {
  __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
inline F16 keep(F16 x, const uint8_t* mask, float other) {
  __m128i bytes = _mm_loadu_si128((const __m128i*)mask);
  __m256 lo = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 31));
  __m256 hi = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)), 31));
  __m256 o = _mm256_set1_ps(other);
  return {_mm256_blendv_ps(o, x.a, lo), _mm256_blendv_ps(o, x.b, hi)};
}
inline __m256 power_of_two(__m256 x, __m256& whole) {
  __m256i n = _mm256_cvtps_epi32(x);
  whole = _mm256_cvtepi32_ps(n);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
inline F16 power_of_two(F16 x, F16& whole) { return {power_of_two(x.a, whole.a), power_of_two(x.b, whole.b)}; }

#else

constexpr int kMaxRows = 4;
constexpr int kPairRows = 1;
constexpr int kPairRowsNarrow = 1;
constexpr int kMaxRowsBfloat16 = 4;
constexpr int64_t kWidenFrom = INT64_MAX;
struct F16 { float v[16]; };
struct I16 { int32_t v[16]; int16_t pairs[32]; };
template <class T>
inline const T& pin(const T& x) { return x; }
#define FIRESTEEL_EACH for (int i = 0; i < 16; ++i)

inline F16 splat(float x) { F16 y; FIRESTEEL_EACH y.v[i] = x; return y; }
inline F16 zero() { return splat(0.0f); }
inline F16 load(const float* p) { F16 y; FIRESTEEL_EACH y.v[i] = p[i]; return y; }
inline F16 load(const bf16* p) { F16 y; FIRESTEEL_EACH y.v[i] = to_float(p[i]); return y; }
inline void store(float* p, F16 x) { FIRESTEEL_EACH p[i] = x.v[i]; }
inline F16 fma(F16 a, F16 b, F16 c) { FIRESTEEL_EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]); return c; }
inline F16 add(F16 a, F16 b) { FIRESTEEL_EACH a.v[i] += b.v[i]; return a; }
inline F16 sub(F16 a, F16 b) { FIRESTEEL_EACH a.v[i] -= b.v[i]; return a; }
inline F16 mul(F16 a, F16 b) { FIRESTEEL_EACH a.v[i] *= b.v[i]; return a; }
inline F16 div(F16 a, F16 b) { FIRESTEEL_EACH a.v[i] /= b.v[i]; return a; }
inline F16 max(F16 a, F16 b) { FIRESTEEL_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
inline F16 min(F16 a, F16 b) { FIRESTEEL_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
inline F16 abs(F16 a) { FIRESTEEL_EACH a.v[i] = std::fabs(a.v[i]); return a; }
inline F16 load_even(const bf16* p) { F16 y; FIRESTEEL_EACH y.v[i] = to_float(p[2 * i]); return y; }
inline F16 load_odd(const bf16* p) { F16 y; FIRESTEEL_EACH y.v[i] = to_float(p[2 * i + 1]); return y; }
inline I16 splat(int32_t x) { I16 y; FIRESTEEL_EACH y.v[i] = x; return y; }
inline I16 load_codes(const int8_t* p) { I16 y; for (int i = 0; i < 32; ++i) y.pairs[i] = p[i]; return y; }
inline I16 splat_codes(const int16_t* p) { I16 y; for (int i = 0; i < 32; ++i) y.pairs[i] = p[i & 1]; return y; }
inline I16 dot(I16 sum, const I16& a, const I16& b) {
  FIRESTEEL_EACH sum.v[i] += a.pairs[2 * i] * b.pairs[2 * i] + a.pairs[2 * i + 1] * b.pairs[2 * i + 1];
  return sum;
}
inline F16 to_float(const I16& x) { F16 y; FIRESTEEL_EACH y.v[i] = float(x.v[i]); return y; }
inline void store_rounded(int16_t* p, F16 x) { FIRESTEEL_EACH p[i] = int16_t(std::nearbyintf(x.v[i])); }
inline F16 keep(F16 x, const uint8_t* mask, float other) { FIRESTEEL_EACH x.v[i] = mask[i] ? x.v[i] : other; return x; }
inline F16 power_of_two(F16 x, F16& whole) {
  FIRESTEEL_EACH {
    whole.v[i] = std::nearbyintf(x.v[i]);
    int32_t bits = (int32_t(whole.v[i]) + 127) << 23;
    std::memcpy(&x.v[i], &bits, 4);
  }
  return x;
}

#endif

#if defined(FIRESTEEL_VNNI)
inline int32_t sum_codes(const int8_t* p) {  // of 16
  return _mm512_reduce_add_epi32(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
using Code = int8_t;              // of an activation
constexpr int kCodesPerStep = 4;  // products that one instruction adds up
constexpr int32_t kCodeOffset = 128;  // added to a weight's code, to make it unsigned
#else
inline int32_t sum_codes(const int16_t*) { return 0; }
using Code = int16_t;
constexpr int kCodesPerStep = 2;
constexpr int32_t kCodeOffset = 0;
#endif

// 2^x for -126 <= x <= 126 (clamped), within 2 units in the last place: the polynomial of Cephes' exp2f.
inline F16 exp2(F16 x) {
  x = max(min(x, splat(126.0f)), splat(-126.0f));
  F16 whole, scale = power_of_two(x, whole), f = sub(x, whole);
  F16 y = splat(1.535336188319500e-4f);
  y = fma(y, f, splat(1.339887440266574e-3f));
  y = fma(y, f, splat(9.618437357674640e-3f));
  y = fma(y, f, splat(5.550332471162809e-2f));
  y = fma(y, f, splat(2.402264791363012e-1f));
  y = fma(y, f, splat(6.931472028550421e-1f));
  return mul(fma(y, f, splat(1.0f)), scale);
}

inline float sum_lanes(F16 x) {
  float v[16];
  store(v, x);
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  return v[0];
}

inline float max_lanes(F16 x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(x.v);
#else
  float v[16];
  store(v, x);
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; ++i) v[i] = v[i] > v[i + width] ? v[i] : v[i + width];
  return v[0];
#endif
}

}  // namespace firesteel
