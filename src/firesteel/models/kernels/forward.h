// One forward. Every thread walks all phases of all layers; a phase is an `omp for`, whose end is a barrier.
#pragma once

#if defined(_OPENMP)
#include <omp.h>
#else
inline int omp_get_thread_num() { return 0; }
inline double omp_get_wtime() { return 0.0; }
#endif

#include "plan.h"

namespace firesteel {

inline thread_local Arena arena;

// x / rms(x) * weight over `count` numbers, `padded` of them stored (the rest is zero); out may be x.
void rms_norm(const float* x, const float* weight, float eps, int64_t count, int64_t padded, float* out) {
  F16 squares = zero();
  for (int64_t i = 0; i < padded; i += 16) squares = fma(load(x + i), load(x + i), squares);
  const F16 scale = splat(1.0f / std::sqrt(sum_lanes(squares) / float(count) + eps));
  for (int64_t i = 0; i < padded; i += 16) store(out + i, mul(load(weight + i), mul(load(x + i), scale)));
}

void rotate(float* x, const float* cosines, const float* sines, int64_t dim, float scale, float* out) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    out[i] = (a * cosines[i] - b * sines[i]) * scale;
    out[i + half] = (b * cosines[i] + a * sines[i]) * scale;
  }
}

void put(void* cache, int32_t kind, int64_t at, const float* x, int64_t count) {
  if (kind == kBfloat16) {
    for (int64_t i = 0; i < count; ++i) static_cast<bf16*>(cache)[at + i] = to_bf16(x[i]);
  } else {
    std::memcpy(static_cast<float*>(cache) + at, x, count * sizeof(float));
  }
}

class Forward {
 public:
  Forward(const Model& model, const Call& call) : m(model), c(call), heads{m.heads, m.kv_heads, m.dim} {
    hidden = up16(m.hidden);
    widest = std::max({hidden, m.layers[0].down.cols, m.heads * m.dim});
    arena.restart();
    do lay_out();
    while (!arena.grown());
    plan.make(m, c);
  }

  void run() {
#pragma omp parallel num_threads(c.threads)
    {
      embed();
      for (int64_t l = 0; l < m.count; ++l) layer(l);
      head();
    }
  }

 private:
  void lay_out() {
    plan.lay_out(arena, m, c);
    const int64_t chunks = plan.chunks;
    x = arena.take<float>(c.n * hidden);
    input = arena.take<float>(c.n * widest);
    inner = arena.take<float>(c.n * widest);
    const int64_t groups = groups_of(widest);
    codes = {arena.take<Code>(c.n * widest), arena.take<float>(c.n * groups), arena.take<int32_t>(c.n * groups), widest,
             groups};
    qkv = arena.take<float>(c.n * (m.heads + 2 * m.kv_heads) * m.dim);
    q = arena.take<float>(c.n * m.heads * m.dim);
    cosines = arena.take<float>(c.n * m.dim / 2);
    sines = arena.take<float>(c.n * m.dim / 2);
    wave_rows = std::min(kWave, c.n);
    const int64_t pairs = m.heads * wave_rows;
    part = {arena.take<float>(pairs * chunks), arena.take<float>(pairs * chunks),
            arena.take<float>(pairs * chunks * m.dim)};
    mine = arena.take<float>(c.threads * scratch_size());
  }

  int64_t scratch_size() const { return 2 * (m.dim + kStrip) * plan.most; }
  Scratch scratch() const {
    float *keys = mine + omp_get_thread_num() * scratch_size(), *values = keys + plan.most * m.dim;
    float* scores = values + plan.most * m.dim;
    return {keys, values, scores, scores + kStrip * plan.most, plan.most};
  }

  void embed() {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < c.n; ++i) {
      for (int64_t d = 0; d < hidden; ++d) {
        const int64_t at = c.tokens[i] * m.hidden + d;
        x[i * hidden + d] = d >= m.hidden                ? 0.0f
                            : m.embed_kind == kBfloat16 ? to_float(static_cast<const bf16*>(m.embed)[at])
                                                        : static_cast<const float*>(m.embed)[at];
      }
      for (int64_t d = 0; d < m.dim / 2; ++d) {
        const float angle = float(c.positions[i]) * m.inv_freq[d];
        cosines[i * m.dim / 2 + d] = std::cos(angle) * m.rope_scale;
        sines[i * m.dim / 2 + d] = std::sin(angle) * m.rope_scale;
      }
    }
    tick(3);
  }

  // Row i of `from` becomes the input of a product with `w`.
  void ready(int64_t i, const Matrix& w, const float* from) {
    if (w.kind == kInt8) codes.put(i, from + i * widest, w.cols);
  }

  Rows rows(const float* from) const { return {{from, widest}, codes}; }

  void norm_then_ready(const float* weight, const Matrix& next) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < c.n; ++i) {
      rms_norm(x + i * hidden, weight, m.eps, m.hidden, hidden, input + i * widest);
      ready(i, next, input);
    }
    tick(3);
  }

  void layer(int64_t l) {
    const LayerWeights& w = m.layers[l];
    norm_then_ready(w.input_norm, w.qkv);
    const int64_t all = (m.heads + 2 * m.kv_heads) * m.dim;
    product(w.qkv, rows(input), c.n, [&](int64_t i, int64_t t, F16 y) { store(qkv + i * all + t * 16, y); });
    tick(0);
    place(l, w);
    for (int64_t wave = 0; wave < plan.wave_count; ++wave) attend(l, w, wave);
    const auto add_to_x = [&](int64_t i, int64_t t, F16 y) {
      float* to = x + i * hidden + t * 16;
      store(to, add(load(to), y));
    };
    product(w.o, rows(input), c.n, add_to_x);
    tick(0);
    norm_then_ready(w.post_norm, w.gate_up);
    gated(w);
    tick(0);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < c.n; ++i) ready(i, w.down, inner);
    tick(3);
    product(w.down, rows(inner), c.n, add_to_x);
    tick(0);
    for (int64_t t = 0; t < m.tap_count; ++t)
      if (m.taps[t] == l) {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < c.n; ++i)
          std::memcpy(c.features + (i * m.tap_count + t) * m.hidden, x + i * hidden, m.hidden * sizeof(float));
      }
  }

  // silu(gate) * up: the gate's tile of a pair waits for its neighbour, the tile of up.
  void gated(const LayerWeights& w) {
    product(w.gate_up, rows(input), c.n, [&](int64_t i, int64_t t, F16 y) {
      float* to = inner + i * widest + t / 2 * 16;
      if (t % 2 == 0) return store(to, y);
      const F16 gate = load(to), e = exp2(mul(gate, splat(-1.4426950408889634f)));
      store(to, mul(div(gate, add(splat(1.0f), e)), y));
    });
  }

  // Norms and rotates the new queries and keys and writes keys and values to their places.
  void place(int64_t l, const LayerWeights& w) {
    const int64_t D = m.dim, group = heads.group();
    const float scale = 1.4426950408889634f / std::sqrt(float(D));  // scores are powers of two
#pragma omp for schedule(static)
    for (int64_t i = 0; i < c.n; ++i) {
      float* from = qkv + i * (m.heads + 2 * m.kv_heads) * D;
      const float *cosine = cosines + i * D / 2, *sine = sines + i * D / 2;
      for (int64_t h = 0; h < m.heads; ++h) {
        float* head_q = from + h * D;
        if (w.q_norm) rms_norm(head_q, w.q_norm, m.eps, D, D, head_q);
        const int64_t g = h / group;
        rotate(head_q, cosine, sine, D, scale, q + ((g * c.n + plan.rank[i]) * group + h % group) * D);
      }
      for (int64_t g = 0; g < m.kv_heads; ++g) {
        float *key = from + (m.heads + g) * D, *value = from + (m.heads + m.kv_heads + g) * D, rotated[1024];
        if (w.k_norm) rms_norm(key, w.k_norm, m.eps, D, D, key);
        rotate(key, cosine, sine, D, 1.0f, rotated);
        const int64_t at = cache_at(c.slots[i], l, g) + c.places[i] * D;
        put(c.keys, c.cache_kind, at, rotated, D);
        put(c.values, c.cache_kind, at, value, D);
      }
    }
    tick(3);
  }

  int64_t cache_at(int64_t slot, int64_t l, int64_t g) const {
    return ((slot * m.count + l) * m.kv_heads + g) * c.capacity * m.dim;
  }

  void attend(int64_t l, const LayerWeights& w, int64_t wave) {
    const int64_t first = plan.waves[wave], end = plan.waves[wave + 1], row0 = plan.blocks[first].first;
    const int64_t group = heads.group(), chunks = plan.chunks;
    const uint8_t* mask = plan.masks + w.window * c.slots_count * c.width * c.length;
    const int64_t* seen = plan.limits + w.window * c.n * chunks;
    const Scratch my = scratch();
#pragma omp for schedule(static)
    for (int64_t item = 0; item < (end - first) * m.kv_heads * chunks; ++item) {
      const int64_t k = item % chunks, g = item / chunks % m.kv_heads, b = first + item / chunks / m.kv_heads;
      const Block& block = plan.blocks[b];
      const int64_t limit = plan.places(w.window, c.n, b, k), fork = plan.forks[w.window * c.n + b] - k * kChunk;
      if (!limit) continue;
      const int64_t at = cache_at(block.slot, l, g) + k * kChunk * m.dim;
      const float* queries = q + (g * c.n + block.first) * group * m.dim;
      const int64_t pair = (g * wave_rows + block.first - row0) * group;
      const auto go = [&](auto* keys, auto* values) {
        attend_chunk(heads, queries, block.rows, keys + at, values + at, mask + k * kChunk, c.length,
                     plan.mask_rows + block.first, plan.paths + w.window * c.n + block.first, limit, fork, pair, k,
                     chunks, part, my);
      };
      if (c.cache_kind == kBfloat16)
        go(static_cast<const bf16*>(c.keys), static_cast<const bf16*>(c.values));
      else
        go(static_cast<const float*>(c.keys), static_cast<const float*>(c.values));
    }
    const int64_t rows_end = plan.blocks[end - 1].first + plan.blocks[end - 1].rows;
#pragma omp for schedule(static)
    for (int64_t r = row0; r < rows_end; ++r) {
      int64_t b = first;
      while (plan.blocks[b].first + plan.blocks[b].rows <= r) ++b;
      const int64_t i = plan.order[r];
      for (int64_t h = 0; h < m.heads; ++h) {
        const int64_t pair = (h / group * wave_rows + r - row0) * group + h % group;
        join(part, pair, chunks, seen + b * chunks, m.dim, input + i * widest + h * m.dim);
      }
      ready(i, w.o, input);
    }
    tick(1);
  }

  void head() {
    const int64_t kept = c.kept;
    if (!kept) return;  // a prefill wants no logits
#pragma omp for schedule(static)
    for (int64_t i = 0; i < kept; ++i) {
      rms_norm(x + (c.keep ? c.keep[i] : i) * hidden, m.norm, m.eps, m.hidden, hidden, input + i * widest);
      ready(i, m.head, input);
    }
    product(m.head, rows(input), kept, [&](int64_t i, int64_t t, F16 y) {
      float* to = c.logits + i * m.vocab + t * 16;
      if (t * 16 + 16 <= m.vocab) return store(to, y);
      float last[16];
      store(last, y);
      std::copy(last, last + m.vocab - t * 16, to);
    });
    tick(2);
  }

  void tick(int what) {  // after a barrier: what the first thread has spent since the last tick
    if (!c.seconds || omp_get_thread_num()) return;
    const double now = omp_get_wtime();
    if (last_tick) c.seconds[what] += now - last_tick;
    last_tick = now;
  }

  const Model& m;
  const Call& c;
  const Heads heads;
  Plan plan;
  int64_t hidden, widest, wave_rows;
  double last_tick = 0;
  float *x, *input, *inner, *qkv, *q, *cosines, *sines, *mine;
  Codes codes;
  Partial part;
};

}  // namespace firesteel
