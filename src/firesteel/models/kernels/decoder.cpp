// One forward of a Llama-like decoder over flat rows: what compact.py computes, with packed weights and no framework.
// Called by ctypes with pointers to tensors that native.py keeps alive.
#include "context.h"
#include "walk.h"

using namespace firesteel;

extern "C" {

int32_t firesteel_version() { return 6; }

// Codes of weights that lie side by side in an int8 tile, and what is added to each.
int32_t firesteel_codes_per_step() { return kCodesPerStep; }
int32_t firesteel_code_offset() { return kCodeOffset; }

// 0, or what is out of its range: 1 a token, 2 a slot, 3 a place, 4 a row of the mask, 5 the mask's length,
// 6 a row to keep.
int32_t firesteel_forward(const Model* model, const Call* call) {
  const Call& c = *call;
  if (c.length % 16 || c.length > c.capacity || c.kept > c.n) return c.kept > c.n ? 6 : 5;
  for (int64_t i = 0; i < c.n; ++i) {
    if (c.tokens[i] < 0 || c.tokens[i] >= model->embed_rows) return 1;
    if (c.slots[i] < 0 || c.slots[i] >= c.slots_count) return 2;
    if (c.places[i] < 0 || c.places[i] >= c.capacity) return 3;
    if (c.flat[i] < 0 || c.flat[i] >= c.slots_count * c.width) return 4;
  }
  for (int64_t i = 0; c.keep && i < c.kept; ++i)
    if (c.keep[i] < 0 || c.keep[i] >= c.n) return 6;
  Forward(*model, c).run();
  return 0;
}

// The same, of a drafter's context: 0, or 2 a slot, 3 a place.
int32_t firesteel_context(const Model* model, const Fusion* fusion, const ContextCall* call) {
  const ContextCall& c = *call;
  for (int64_t i = 0; i < c.n; ++i) {
    if (c.slots[i] < 0 || c.slots[i] >= c.slots_count) return 2;
    if (c.places[i] < 0 || c.places[i] >= c.capacity) return 3;
  }
  ContextPass(*model, *fusion, c).run();
  return 0;
}

// A drafter's walk along its blocks. The caller has checked all ids.
void firesteel_walk(const Markov* markov, const WalkCall* call) { Walk(*markov, *call).run(); }

// out[n, outputs] = x @ w: one product alone, for the tests. x fp32 [n, cols].
void firesteel_product(const Matrix* w, const float* x, int64_t n, int32_t threads, float* out) {
  const int64_t groups = groups_of(w->cols);
  std::vector<Code> numbers(n * w->cols);
  std::vector<float> scales(n * groups);
  std::vector<int32_t> offsets(n * groups);
  const Codes codes{numbers.data(), scales.data(), offsets.data(), w->cols, groups};
  for (int64_t i = 0; i < n && w->kind == kInt8; ++i) codes.put(i, x + i * w->cols, w->cols);
#pragma omp parallel num_threads(threads)
  product(*w, {{x, w->cols}, codes}, n,
          [&](int64_t i, int64_t t, F16 y) { store(out + i * w->outputs + t * 16, y); });
}

}  // extern "C"
