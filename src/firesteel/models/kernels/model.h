// What the caller hands over, mirrored by ctypes in native.py, and the memory of a forward.
#pragma once

#include <algorithm>
#include <vector>

#include "product.h"

namespace firesteel {

struct LayerWeights {
  const float *input_norm, *q_norm, *k_norm, *post_norm;  // q_norm and k_norm may be null
  Matrix qkv, o, gate_up, down;  // gate_up: tiles of gate and of up take turns
  int64_t window;                // index of the layer's mask
};

struct Model {
  const void* embed;  // [embed_rows, hidden]
  const float *inv_freq, *norm;
  const LayerWeights* layers;
  const int64_t *taps, *windows;  // windows: sliding window of each mask, 0 for none
  Matrix head;
  int64_t count, hidden, heads, kv_heads, dim, embed_rows, vocab, tap_count, window_count;
  int32_t embed_kind;
  float eps, rope_scale;
};

struct Call {
  const int64_t *tokens, *positions, *slots, *places, *flat;
  const int64_t* keep;            // [kept] rows whose logits are wanted, or null for all (kept is n then)
  const uint8_t* mask;            // [B, R, S]
  const int64_t* key_positions;   // [B, S]
  void *keys, *values;            // [B, layers, kv_heads, capacity, dim]
  float *logits, *features;       // [kept, vocab], [n, taps * hidden]
  double* seconds;                // null, or [4]: products, attention, head, the rest
  int64_t n, kept, slots_count, width, length, capacity;
  int32_t cache_kind, threads;
};

inline int64_t up16(int64_t x) { return (x + 15) / 16 * 16; }

class Arena {  // one growing piece of memory, cut into arrays aligned to 64 bytes
 public:
  template <class T>
  T* take(int64_t count) {
    const int64_t start = size_;
    size_ += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
    return base_ ? reinterpret_cast<T*>(base_ + start) : nullptr;
  }
  bool grown() {  // false the first time around: the sizes are known only now
    if (base_) return true;
    memory_.resize(std::max<size_t>(memory_.size(), size_ + 64));
    base_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64);
    size_ = 0;
    return false;
  }
  void restart() { base_ = nullptr, size_ = 0; }

 private:
  std::vector<char> memory_;
  char* base_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace firesteel
