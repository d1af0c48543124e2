// Scalar reference of token and position embedding, for double and std::complex<double>.
#pragma once

#include <complex>
#include <cstdint>
#include <vector>

namespace mantissa::reference {

// An empty position_table means no positions; empty starts mean one document per sequence.
template <typename T>
std::vector<T> embedding_forward(const std::vector<int32_t>& tokens, const std::vector<T>& token_table,
                                 const std::vector<T>& position_table, size_t sequence_length, size_t columns,
                                 const std::vector<int32_t>& starts = {}) {
  std::vector<T> y(tokens.size() * columns);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t row = i / columns, c = i % columns;
    y[i] = token_table[static_cast<size_t>(tokens[row]) * columns + c];
    const size_t position = row % sequence_length - (starts.empty() ? 0 : static_cast<size_t>(starts[row]));
    if (!position_table.empty()) y[i] += position_table[position * columns + c];
  }
  return y;
}

template <typename T>
struct EmbeddingGradients {
  std::vector<T> d_token_table, d_position_table;
};

template <typename T>
EmbeddingGradients<T> embedding_backward(const std::vector<int32_t>& tokens, const std::vector<T>& dy,
                                         size_t vocabulary, size_t positions, size_t sequence_length, size_t columns,
                                         const std::vector<int32_t>& starts = {}) {
  EmbeddingGradients<T> out{std::vector<T>(vocabulary * columns), std::vector<T>(positions * columns)};
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t row = i / columns, c = i % columns;
    out.d_token_table[static_cast<size_t>(tokens[row]) * columns + c] += dy[i];
    const size_t position = row % sequence_length - (starts.empty() ? 0 : static_cast<size_t>(starts[row]));
    if (positions != 0) out.d_position_table[position * columns + c] += dy[i];
  }
  return out;
}

}  // namespace mantissa::reference
