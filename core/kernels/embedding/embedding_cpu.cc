// Embedding and rotary position embedding.
#include "core/kernels/embedding/args.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/cpu/memory.h"
#include "core/kernels/documents.h"
#include "core/kernels/elementwise/args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/embedding/embedding_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// ---- y[r] = token_table[tokens[r]] + position_table[position], in fp32 with one rounding on store.
// Gradients: rows of dy are added into fp32 tables in row order. Threads divide the columns, not the rows, so no two
// threads write to the same element and the order of additions is fixed.

HWY_INLINE void add_rows(const float* a, const float* b, float* y, int64_t n) {
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    store(hn::Add(load(a + i, count), load(b + i, count)), y + i, count);
  });
}

void embedding_forward_kernel(const EmbeddingForwardArgs& args, const RowScratch& scratch) {
  const int64_t columns = args.y.shape().last();
  const int32_t *tokens = args.tokens.data<int32_t>(), *starts = data_or_null<int32_t>(args.starts);
  const bool positions = args.position_table.defined();
  const RowReader token_reader(args.token_table, columns);
  const RowReader position_reader(positions ? args.position_table : args.token_table, columns);
  const RowWriter writer(args.y, columns, GradientMode::kWrite);
  parallel_rows(args.tokens.numel(), columns, [&](int64_t row) {
    const float* token = token_reader.read(tokens[row], scratch.own(0));
    float* y = writer.target(row, scratch.own(2));
    if (positions) {
      const int64_t position = position_in_document(starts, row, args.sequence_length);
      add_rows(token, position_reader.read(position, scratch.own(1)), y, columns);
    } else {
      std::memcpy(y, token, static_cast<size_t>(columns) * sizeof(float));
    }
    writer.finish(row, y);
  });
}

template <typename T>
void accumulate(const T* dy, float* gradient, int64_t n) {
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    store(hn::Add(load(gradient + i, count), load(dy + i, count)), gradient + i, count);
  });
}

void embedding_backward_kernel(const EmbeddingBackwardArgs& args) {
  constexpr int64_t kColumnsPerChunk = 64;  // whole cache lines of the tables
  const int64_t columns = args.dy.shape().last();
  const int64_t rows = args.tokens.numel();
  const int64_t chunks = divide_up(columns, kColumnsPerChunk);
  const int32_t *tokens = args.tokens.data<int32_t>(), *starts = data_or_null<int32_t>(args.starts);
  float* d_token = args.d_token_table.data<float>();
  float* d_position = args.d_position_table.defined() ? args.d_position_table.data<float>() : nullptr;
  dispatch(args.dy.dtype(), [&]<typename T>() {
    const T* dy = args.dy.data<T>();
    parallel_rows(chunks, rows * kColumnsPerChunk, [&](int64_t chunk) {
      const int64_t begin = chunk * kColumnsPerChunk;
      const int64_t count = std::min(kColumnsPerChunk, columns - begin);
      for (int64_t row = 0; row < rows; ++row) {
        const T* source = dy + row * columns + begin;
        accumulate(source, d_token + tokens[row] * columns + begin, count);
        if (!d_position) continue;
        const int64_t position = position_in_document(starts, row, args.sequence_length);
        accumulate(source, d_position + position * columns + begin, count);
      }
    });
  });
}

// ---- RoPE: each pair (a, b) becomes (a cos - b sin, b cos + a sin), in fp32 with one rounding on store.

template <typename T>
void rotate_head(const T* x, T* y, const float* cosine, const float* sine, float sign, int64_t half) {
  const auto direction = hn::Set(FloatTag(), sign);
  for_each_vector(half, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto a = load(x + i, count);
    const auto b = load(x + half + i, count);
    const auto c = load(cosine + i, count);
    const auto s = hn::Mul(load(sine + i, count), direction);
    store(hn::NegMulAdd(b, s, hn::Mul(a, c)), y + i, count);
    store(hn::MulAdd(a, s, hn::Mul(b, c)), y + half + i, count);
  });
}

// cosines and sines (positions, D/2), by position and pair.
void rope_kernel(const RopeArgs& args, const float* cosines, const float* sines) {
  const int64_t half = args.head_dim / 2;
  const int64_t columns = args.row_heads * args.head_dim;
  const int64_t rotated = args.rotated_heads * args.head_dim;
  const int32_t* const starts = data_or_null<int32_t>(args.starts);
  const float sign = args.rotation == Rotation::kForward ? 1.0f : -1.0f;
  dispatch(args.x.dtype(), [&]<typename T>() {
    parallel_rows(args.x.numel() / columns, columns, [&](int64_t row) {
      const T* x = args.x.data<T>() + row * columns;
      T* y = args.y.data<T>() + row * columns;
      const int64_t position = position_in_document(starts, row, args.sequence_length);
      for (int64_t head = 0; head < args.rotated_heads; ++head) {
        rotate_head(x + head * args.head_dim, y + head * args.head_dim, cosines + position * half,
                    sines + position * half, sign, half);
      }
      if (x != y) std::memcpy(y + rotated, x + rotated, static_cast<size_t>(columns - rotated) * sizeof(T));
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(embedding_forward_kernel);
HWY_EXPORT(embedding_backward_kernel);
HWY_EXPORT(rope_kernel);

namespace {

// A token outside the table would access foreign memory. The data loader has already rejected such tokens.
void check_tokens(const char* op, const Tensor& tokens, int64_t vocabulary) {
  const int32_t* data = tokens.data<int32_t>();
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    MANTISSA_CHECK(data[i] >= 0 && data[i] < vocabulary, "[{}] tokens must be in [0, {}), got {} at index {}", op,
                   vocabulary, data[i], i);
  }
}

// (positions, D/2) each, by position and pair.
struct RopeTable {
  int64_t positions = 0;
  int64_t head_dim = 0;
  RopeFrequencies frequencies{};
  std::vector<float> cosine, sine;
};

// Computes angles in double: at position 1e5 an fp32 angle would be wrong by 4e-3. Keeps the calling thread's last
// table, since every layer of a step uses the same one. It has at least `positions`.
const RopeTable& rope_table(int64_t positions, int64_t head_dim, const RopeFrequencies& frequencies) {
  thread_local RopeTable table;
  if (table.positions >= positions && table.head_dim == head_dim && table.frequencies == frequencies) return table;
  const int64_t half = head_dim / 2;
  table.cosine.resize(static_cast<size_t>(positions * half));
  table.sine.resize(static_cast<size_t>(positions * half));
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = frequencies.of_pair(i, head_dim);
    for (int64_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table.cosine[static_cast<size_t>(position * half + i)] = static_cast<float>(std::cos(angle));
      table.sine[static_cast<size_t>(position * half + i)] = static_cast<float>(std::sin(angle));
    }
  }
  table.positions = positions;
  table.head_dim = head_dim;
  table.frequencies = frequencies;
  return table;
}

}  // namespace

void run(const EmbeddingForwardArgs& args) {
  const Rows rows = check_args(args);
  check_tokens("embedding", args.tokens, args.token_table.dim(0));
  const int64_t last =
      check_start_values("embedding", args.starts, args.sequence_length, DocumentStart::kAlsoBefore) - 1;
  MANTISSA_CHECK(!args.position_table.defined() || last < args.position_table.dim(0),
                 "[embedding] positions must be in [0, {}), got {}", args.position_table.dim(0), last);
  HWY_DYNAMIC_DISPATCH(embedding_forward_kernel)(args, RowScratch(rows.columns, 0, 3, 0));
}

void run(const EmbeddingBackwardArgs& args) {
  check_args(args);
  check_tokens("embedding backward", args.tokens, args.d_token_table.dim(0));
  check_start_values("embedding backward", args.starts, args.sequence_length);
  if (args.token_mode == GradientMode::kWrite) run(FillArgs{.dst = args.d_token_table, .value = 0.0f});
  if (args.d_position_table.defined() && args.position_mode == GradientMode::kWrite)
    run(FillArgs{.dst = args.d_position_table, .value = 0.0f});
  HWY_DYNAMIC_DISPATCH(embedding_backward_kernel)(args);
}

void run(const RopeArgs& args) {
  check_args(args);
  const int64_t positions = check_start_values("rope", args.starts, args.sequence_length, DocumentStart::kAlsoBefore);
  // A text that is continued grows by a token with each call.
  const bool grows = positions > args.sequence_length;
  const RopeTable& table = rope_table(grows ? std::bit_ceil(static_cast<uint64_t>(positions)) : args.sequence_length,
                                      args.head_dim, args.frequencies);
  HWY_DYNAMIC_DISPATCH(rope_kernel)(args, table.cosine.data(), table.sine.data());
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
