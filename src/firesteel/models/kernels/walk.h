// A drafter's walk along its blocks: each token from the base logits of its row and the Markov head's bias, which the
// token before decides; then the likeliest tokens of every row. What drafters/walk.py computes with a vanilla head.
#pragma once

#include "forward.h"

namespace firesteel {

struct Markov {
  Matrix w2;            // [vocab, rank], fp32 or bf16
  const float* w1;      // [target tokens, rank]
  const int64_t* kept;  // [vocab] target id of each draft id, or null for the identity
  int64_t rank, vocab;  // rank: padded to 16; vocab: draft ids
};

struct WalkCall {
  const float* base;                          // [N, vocab]
  const int64_t *anchors, *starts, *lengths;  // [n] per block
  const float* heats;                         // [n] temperature of the probabilities
  float* logits;                              // [N, vocab]
  int64_t *picks, *before;                    // [N] draft ids and target ids
  int64_t* top;                               // [N, count] draft ids, likeliest first
  float* probs;                               // [N, count]
  int64_t n, count;
  int32_t threads;
};

class Walk {
 public:
  Walk(const Markov& markov, const WalkCall& call) : m(markov), c(call) {
    longest = 0;
    int64_t total = 0;
    for (int64_t i = 0; i < c.n; ++i) longest = std::max(longest, c.lengths[i]), total += c.lengths[i];
    arena.restart();
    do {
      factors = arena.take<float>(c.n * m.rank);
      rows = arena.take<int64_t>(c.n);
      owners = arena.take<int64_t>(total);
      all = arena.take<int64_t>(total);
    } while (!arena.grown());
  }

  void run() {
#pragma omp parallel num_threads(c.threads)
    {
      for (int64_t k = 0; k < longest; ++k) {
#pragma omp single
        look_up(k);
        product(m.w2, Rows{{factors, m.rank}, {}}, alive, [&](int64_t i, int64_t t, F16 y) { add_bias(rows[i], t, y); });
#pragma omp for schedule(static)
        for (int64_t i = 0; i < alive; ++i) c.picks[rows[i]] = best(c.logits + rows[i] * m.vocab);
      }
#pragma omp for schedule(static)
      for (int64_t i = 0; i < seen; ++i) tell(all[i], c.heats[owners[i]]);
    }
  }

 private:
  // The rows of position k and the Markov rows of the tokens before them.
  void look_up(int64_t k) {
    alive = 0;
    for (int64_t i = 0; i < c.n; ++i) {
      if (c.lengths[i] <= k) continue;
      const int64_t row = c.starts[i] + k;
      int64_t token = k ? c.picks[row - 1] : c.anchors[i];
      if (k && m.kept) token = m.kept[token];
      c.before[row] = token;
      std::memcpy(factors + alive * m.rank, m.w1 + token * m.rank, m.rank * sizeof(float));
      owners[seen] = i, all[seen++] = row;
      rows[alive++] = row;
    }
  }

  void add_bias(int64_t row, int64_t tile, F16 y) {
    const float* from = c.base + row * m.vocab + tile * 16;
    float* to = c.logits + row * m.vocab + tile * 16;
    if (tile * 16 + 16 <= m.vocab) return store(to, add(load(from), y));
    float last[16];
    store(last, y);
    for (int64_t i = 0; i < m.vocab - tile * 16; ++i) to[i] = from[i] + last[i];
  }

  // Calls f(first, values, valid lanes) for 16 logits at a time; lanes past the end hold -1e30.
  template <class F>
  void each16(const float* x, F&& f) const {
    int64_t i = 0;
    for (; i + 16 <= m.vocab; i += 16) f(i, load(x + i));
    if (i == m.vocab) return;
    float last[16];
    std::fill(last, last + 16, -1e30f);
    std::copy(x + i, x + m.vocab, last);
    f(i, load(last));
  }

  int64_t best(const float* x) const {  // the lowest id of a tie
    int64_t id = 0;
    float top = -1e30f;
    each16(x, [&](int64_t first, F16 v) {
      if (!(max_lanes(v) > top)) return;
      for (int64_t i = first; i < std::min(first + 16, m.vocab); ++i)
        if (x[i] > top) top = x[i], id = i;
    });
    return id;
  }

  // The likeliest `count` tokens of a row and their probabilities at temperature `heat`.
  void tell(int64_t row, float heat) {
    const float* x = c.logits + row * m.vocab;
    int64_t* ids = c.top + row * c.count;
    float* values = c.probs + row * c.count;
    std::fill(values, values + c.count, -1e30f);
    std::fill(ids, ids + c.count, 0);
    const int64_t last = c.count - 1;
    each16(x, [&](int64_t first, F16 v) {
      if (!(max_lanes(v) > values[last])) return;
      for (int64_t i = first; i < std::min(first + 16, m.vocab); ++i) {
        if (!(x[i] > values[last])) continue;
        int64_t at = last;
        for (; at && x[i] > values[at - 1]; --at) values[at] = values[at - 1], ids[at] = ids[at - 1];
        values[at] = x[i], ids[at] = i;
      }
    });
    const float top = values[0], scale = 1.4426950408889634f / heat;
    F16 sum = zero();
    each16(x, [&](int64_t, F16 v) { sum = add(sum, exp2(mul(sub(v, splat(top)), splat(scale)))); });
    const float total = sum_lanes(sum);
    for (int64_t i = 0; i < c.count; ++i) values[i] = std::exp2((values[i] - top) * scale) / total;
  }

  const Markov& m;
  const WalkCall& c;
  int64_t longest, alive = 0, seen = 0;
  float* factors;
  int64_t *rows, *owners, *all;
};

}  // namespace firesteel
