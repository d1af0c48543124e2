// Cosines and sines of rotary position embedding.
#pragma once

#include <cstdint>
#include <vector>

namespace mantissa::cpu {

// (T, D/2) each, by position and pair: cosine and sine of position * base^(-2i/D).
struct RopeTable {
  int64_t sequence_length = 0;
  int64_t head_dim = 0;
  float base = 0;
  std::vector<float> cosine, sine;
};

// Computes angles in double: at position 1e5 an fp32 angle would be wrong by 4e-3. Keeps the calling thread's last
// table, since every layer of a step uses the same one.
const RopeTable& rope_table(int64_t sequence_length, int64_t head_dim, float base);

}  // namespace mantissa::cpu
