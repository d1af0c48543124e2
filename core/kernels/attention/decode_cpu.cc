// out = softmax(scale * q k^T) v for rows that continue texts, with keys and values from a cache.
//
// The keys of a row are cut into chunks at multiples of 256. A task is a chunk of a key head, with all query heads that
// read it: each chunk of the cache is read once. It leaves, in fp32, its maximum m, total l = sum exp(s - m) and sums o
// = exp(s - m) v. Then the chunks of each query head are combined in order:
//   out = sum exp(m_i - m) o_i / sum exp(m_i - m) l_i, with m = max m_i.
// The cut depends on positions only, so a row has the same bits whatever the other rows and the number of threads.
// Bound by reading the cache.
#include "core/kernels/attention/decode_cpu.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/cpu/memory.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention/decode_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// One thread's working memory.
struct DecodeScratch {
  ScratchLayout layout;
  int64_t group, dim;
  float* queries = layout.take<float>(group * dim);          // scaled
  float* scores = layout.take<float>(group * kDecodeChunk);  // then probabilities
  size_t bytes = layout.used_bytes();
};

// Turns scores into exp(score - maximum).
HWY_INLINE void exponentiate(float* scores, int64_t count, float* maximum, float* total) {
  const FloatTag df;
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < count; ++j) largest = std::max(largest, scores[j]);  // skips NaN, which exp() keeps
  // While every score is -Inf any finite reference gives p = 0; -Inf itself would give NaN.
  const auto reference = hn::Set(df, std::isinf(largest) && largest < 0.0f ? 0.0f : largest);
  for_each_vector(count, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
    store(exp(hn::Sub(load(scores + i, lanes), reference)), scores + i, lanes);
  });
  *maximum = largest;
  *total = sum_vectors(count, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA { return load(scores + i, lanes); });
}

template <typename T>
void attend_chunk(const AttentionDecodeArgs& args, const DecodeTask& task, const DecodePart& part) {
  const AttentionShape& shape = args.shape;
  const int64_t dim = shape.head_dim, group = shape.group(), count = task.end - task.begin;
  const auto s = thread_scratch<DecodeScratch>(group, dim);
  const int64_t sequence = args.sequences.data<int32_t>()[task.row];
  const T* const queries = args.qkv.data<T>() + task.row * shape.qkv_row() + task.kv_head * group * dim;
  const T* const keys = args.cache.data<T>() + cache_offset(shape, sequence, task.kv_head) + task.begin * dim;
  const T* const values =
      args.cache.data<T>() + cache_offset(shape, sequence, shape.num_kv_heads + task.kv_head) + task.begin * dim;
  const auto scale = hn::Set(FloatTag(), shape.scale);
  for_each_vector(group * dim, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
    store(hn::Mul(load(queries + i, lanes), scale), s.queries + i, lanes);
  });
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t g = 0; g < group; ++g) {
      const T* const key = keys + j * dim;
      const float* const query = s.queries + g * dim;
      s.scores[g * kDecodeChunk + j] = sum_vectors(dim, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
        return hn::Mul(load(key + i, lanes), load(query + i, lanes));
      });
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    exponentiate(s.scores + g * kDecodeChunk, count, part.maxima + g, part.totals + g);
  }
  std::fill_n(part.sums, group * dim, 0.0f);
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t g = 0; g < group; ++g) {
      const T* const value = values + j * dim;
      float* const sums = part.sums + g * dim;
      const auto p = hn::Set(FloatTag(), s.scores[g * kDecodeChunk + j]);
      for_each_vector(dim, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
        store(hn::MulAdd(p, load(value + i, lanes), load(sums + i, lanes)), sums + i, lanes);
      });
    }
  }
}

void attend_chunk_any(const AttentionDecodeArgs& args, const DecodeTask& task, const DecodePart& part) {
  dispatch(args.qkv.dtype(), [&]<typename T>() { attend_chunk<T>(args, task, part); });
}

// The result of a query head, whose parts are `parts[0]` to `parts[count - 1]`, each at index `g`.
template <typename T>
void combine_chunks(const DecodePart* parts, int64_t count, int64_t g, int64_t dim, T* out) {
  float largest = -std::numeric_limits<float>::infinity(), total = 0.0f;
  for (int64_t c = 0; c < count; ++c) largest = std::max(largest, parts[c].maxima[g]);
  const float reference = std::isinf(largest) && largest < 0.0f ? 0.0f : largest;
  float* const sums = parts[0].sums + g * dim;
  for (int64_t c = 0; c < count; ++c) {
    const float factor = std::exp(parts[c].maxima[g] - reference);
    const float* const part = parts[c].sums + g * dim;
    const bool is_first = c == 0;
    total = std::fma(factor, parts[c].totals[g], total);
    for_each_vector(dim, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
      const auto scaled = hn::Mul(hn::Set(FloatTag(), factor), load(part + i, lanes));
      store(is_first ? scaled : hn::Add(scaled, load(sums + i, lanes)), sums + i, lanes);
    });
  }
  const auto inverse = hn::Set(FloatTag(), 1.0f / total);
  for_each_vector(dim, [&](int64_t i, int64_t lanes)
                           MANTISSA_VECTOR_LAMBDA { store(hn::Mul(load(sums + i, lanes), inverse), out + i, lanes); });
}

void combine_chunks_any(const AttentionDecodeArgs& args, const DecodePart* parts, int64_t count, int64_t row,
                        int64_t head) {
  const AttentionShape& shape = args.shape;
  dispatch(args.out.dtype(), [&]<typename T>() {
    combine_chunks(parts, count, head % shape.group(), shape.head_dim,
                   args.out.data<T>() + row * shape.out_row() + head * shape.head_dim);
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(attend_chunk_any);
HWY_EXPORT(combine_chunks_any);

void run(const AttentionAppendArgs& args) { append_to_cache(args); }

void run(const AttentionDecodeArgs& args) {
  const int64_t rows = check_args(args);
  check_places("attention_decode", args, CachedPlace::kEveryRow);
  const AttentionShape& shape = args.shape;
  std::vector<DecodeTask> tasks;
  std::vector<int64_t> first_task;  // of a row's key head
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t end = args.positions.data<int32_t>()[row] + 1, first = shape.first_key(end - 1);
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      first_task.push_back(std::ssize(tasks));
      for (int64_t begin = first; begin < end;) {
        const int64_t next = std::min(end, (begin / kDecodeChunk + 1) * kDecodeChunk);
        tasks.push_back({row, kv_head, begin, next});
        begin = next;
      }
    }
  }
  first_task.push_back(std::ssize(tasks));

  thread_local Scratch memory;
  const int64_t group = shape.group(), floats = round_up(group * (2 + shape.head_dim), int64_t{16});
  float* const all = memory.reserve_floats(std::ssize(tasks) * floats);
  std::vector<DecodePart> parts;
  for (int64_t i = 0; i < std::ssize(tasks); ++i) {
    float* const own = all + i * floats;
    parts.push_back({.maxima = own, .totals = own + group, .sums = own + 2 * group});
  }
  const auto attend = HWY_DYNAMIC_DISPATCH(attend_chunk_any);
  parallel_for(std::ssize(tasks),
               [&](int64_t i) { attend(args, tasks[static_cast<size_t>(i)], parts[static_cast<size_t>(i)]); });
  const auto combine = HWY_DYNAMIC_DISPATCH(combine_chunks_any);
  parallel_rows(rows * shape.num_heads, shape.head_dim, [&](int64_t index) {
    const int64_t row = index / shape.num_heads, head = index % shape.num_heads;
    const auto key_head = static_cast<size_t>(row * shape.num_kv_heads + head / group);
    combine(args, parts.data() + first_task[key_head], first_task[key_head + 1] - first_task[key_head], row, head);
  });
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
