// A drafter's context: c = norm(fc(features)) of new tokens, and of every layer its key and value, put in their places.
#pragma once

#include "forward.h"

namespace firesteel {

struct Fusion {
  Matrix fc;          // [hidden, feature columns], fp32 or bf16
  const float* norm;  // [hidden]
};

struct ContextCall {
  const float* features;  // [n, fc.cols]
  const int64_t *positions, *slots, *places;
  void *keys, *values;  // [B, layers, kv_heads, capacity, dim]
  int64_t n, slots_count, capacity;
  int32_t cache_kind, threads;
};

// The key and value rows of a layer's q/k/v matrix, which lie behind those of the query.
inline Matrix keys_values(const Matrix& qkv, int64_t queries) {
  Matrix m = qkv;
  const int64_t bytes = m.kind == kInt8 ? 1 : m.kind == kBfloat16 ? 2 : 4;
  m.tiles = static_cast<const char*>(m.tiles) + queries * m.cols * bytes;
  if (m.scales) m.scales += queries;
  if (m.bias) m.bias += queries;
  m.outputs -= queries;
  return m;
}

class ContextPass {
 public:
  ContextPass(const Model& model, const Fusion& fusion, const ContextCall& call) : m(model), f(fusion), c(call) {
    hidden = up16(m.hidden);
    width = 2 * m.kv_heads * m.dim;
    arena.restart();
    do {
      fused = arena.take<float>(c.n * hidden);
      const int64_t groups = groups_of(hidden);
      codes = {arena.take<Code>(c.n * hidden), arena.take<float>(c.n * groups), arena.take<int32_t>(c.n * groups),
               hidden, groups};
      kv = arena.take<float>(c.n * width);
      cosines = arena.take<float>(c.n * m.dim / 2);
      sines = arena.take<float>(c.n * m.dim / 2);
    } while (!arena.grown());
  }

  void run() {
#pragma omp parallel num_threads(c.threads)
    {
      product(f.fc, Rows{{c.features, f.fc.cols}, {}}, c.n,
              [&](int64_t i, int64_t t, F16 y) { store(fused + i * hidden + t * 16, y); });
      const Matrix& first = m.layers[0].qkv;
#pragma omp for schedule(static)
      for (int64_t i = 0; i < c.n; ++i) {
        rms_norm(fused + i * hidden, f.norm, m.eps, m.hidden, hidden, fused + i * hidden);
        if (first.kind == kInt8) codes.put(i, fused + i * hidden, hidden);
        for (int64_t d = 0; d < m.dim / 2; ++d) {
          const float angle = float(c.positions[i]) * m.inv_freq[d];
          cosines[i * m.dim / 2 + d] = std::cos(angle) * m.rope_scale;
          sines[i * m.dim / 2 + d] = std::sin(angle) * m.rope_scale;
        }
      }
      for (int64_t l = 0; l < m.count; ++l) layer(l);
    }
  }

 private:
  void layer(int64_t l) {
    const LayerWeights& w = m.layers[l];
    product(keys_values(w.qkv, m.heads * m.dim), Rows{{fused, hidden}, codes}, c.n,
            [&](int64_t i, int64_t t, F16 y) { store(kv + i * width + t * 16, y); });
#pragma omp for schedule(static)
    for (int64_t i = 0; i < c.n; ++i) {
      for (int64_t g = 0; g < m.kv_heads; ++g) {
        float *key = kv + i * width + g * m.dim, *value = key + m.kv_heads * m.dim, rotated[1024];
        if (w.k_norm) rms_norm(key, w.k_norm, m.eps, m.dim, m.dim, key);
        rotate(key, cosines + i * m.dim / 2, sines + i * m.dim / 2, m.dim, 1.0f, rotated);
        const int64_t at = (((c.slots[i] * m.count + l) * m.kv_heads + g) * c.capacity + c.places[i]) * m.dim;
        put(c.keys, c.cache_kind, at, rotated, m.dim);
        put(c.values, c.cache_kind, at, value, m.dim);
      }
    }
  }

  const Model& m;
  const Fusion& f;
  const ContextCall& c;
  int64_t hidden, width;
  float *fused, *kv, *cosines, *sines;
  Codes codes;
};

}  // namespace firesteel
