#include "core/kernels/embedding/rope_table_cpu.h"

#include <cmath>

namespace mantissa::cpu {

const RopeTable& rope_table(int64_t sequence_length, int64_t head_dim, float base) {
  thread_local RopeTable table;
  if (table.sequence_length == sequence_length && table.head_dim == head_dim && table.base == base) return table;
  const int64_t half = head_dim / 2;
  table.cosine.resize(static_cast<size_t>(sequence_length * half));
  table.sine.resize(static_cast<size_t>(sequence_length * half));
  for (int64_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(static_cast<double>(base), -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    for (int64_t position = 0; position < sequence_length; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table.cosine[static_cast<size_t>(position * half + i)] = static_cast<float>(std::cos(angle));
      table.sine[static_cast<size_t>(position * half + i)] = static_cast<float>(std::sin(angle));
    }
  }
  table.sequence_length = sequence_length;
  table.head_dim = head_dim;
  table.base = base;
  return table;
}

}  // namespace mantissa::cpu
