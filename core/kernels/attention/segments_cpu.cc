#include "core/kernels/attention/segments_cpu.h"

#include <vector>

#include "core/cpu/memory.h"
#include "core/cpu/parallel.h"

namespace mantissa::cpu {

AttentionSegments::AttentionSegments(const AttentionShape& shape) : AttentionBlocks(shape) {
  const int64_t most = blocks() / kMinBlocks;
  segments_ = std::clamp<int64_t>(divide_up(kWantedTasks, num_heads), 1, std::max<int64_t>(most, 1));
  is_cut_ = most > 0 && num_kv_heads < kWantedTasks && segments_ * group() > 1;
  // In pairs of query and key blocks.
  const auto work_of = [&](int64_t block) { return key_blocks_end(block) - key_blocks_begin(block); };
  int64_t work = 0, done = 0;
  for (int64_t block = 0; block < blocks(); ++block) work += work_of(block);
  for (int64_t segment = 0, block = 0; segment < segments_; ++segment) {
    while (done * segments_ < work * (segment + 1)) done += work_of(block++);
    query_blocks_[segment + 1] = block;
    key_blocks_before_[segment + 1] = key_blocks_before_[segment] + key_blocks_end(block - 1);
  }
}

bool AttentionSegments::in_parallel(int64_t threads) const {
  const int64_t heads = batch * num_kv_heads;
  return is_cut_ && 10 * heads < 9 * threads * divide_up(heads, threads);
}

int64_t AttentionSegments::heads_per_round() const {
  const int64_t heads = batch * num_kv_heads, most = divide_up(kWantedTasks, segments_of_group());
  return divide_up(heads, divide_up(heads, most));
}

int64_t AttentionSegments::first_segment(int64_t key_block) const {
  int64_t segment = 0;
  while (segment_key_blocks(segment) <= key_block) ++segment;
  return segment;
}

int64_t AttentionSegments::segments_end(int64_t key_block) const {
  int64_t end = segments_;
  while (segment_begin(end - 1) >= query_blocks_end(key_block)) --end;
  return end;
}

KeySums AttentionSegments::sums(float* of_head, int64_t g, int64_t segment, int64_t columns) const {
  float* const first = of_head + g * floats_before(segments_, columns) + floats_before(segment, columns);
  return {first, first + segment_key_blocks(segment) * kAttentionBlock * columns};
}

namespace {

// Key heads one after the other, the segments of each in parallel.
void run_segments(const AttentionBackwardArgs& args, const AttentionSegments& shape,
                  const AttentionBackwardKernels& kernels) {
  const int64_t heads = shape.batch * shape.num_kv_heads;
  thread_local Scratch memory;
  const int64_t segments = shape.segments_of_group(), floats = shape.sums_floats(kernels.columns);
  const int64_t heads_per_round = shape.heads_per_round();
  float* const sums = memory.reserve_floats(heads_per_round * floats);
  for (int64_t first = 0; first < heads; first += heads_per_round) {
    const int64_t count = std::min(heads_per_round, heads - first);
    parallel_for(count * segments, [&](int64_t task) {
      const int64_t i = task / segments, query_head = first * shape.group() + task / shape.segments();
      kernels.segment(args, shape, query_head / shape.num_heads, query_head % shape.num_heads, task % shape.segments(),
                      sums + i * floats);
    });
    parallel_for(count * shape.blocks(), [&](int64_t task) {
      const int64_t i = task / shape.blocks(), index = first + i;
      kernels.finish(args, shape, index / shape.num_kv_heads, index % shape.num_kv_heads, task % shape.blocks(),
                     sums + i * floats);
    });
  }
}

}  // namespace

void run_attention_backward(std::span<const AttentionBackwardArgs> calls, const AttentionBackwardKernels& kernels) {
  struct KeyHead {
    const AttentionBackwardArgs* args;
    const AttentionSegments* shape;
    int64_t index;
  };
  std::vector<AttentionSegments> shapes;
  for (const AttentionBackwardArgs& args : calls) shapes.emplace_back(args.shape);
  std::vector<KeyHead> tasks;
  for (size_t i = 0; i < calls.size(); ++i) {
    const AttentionSegments& shape = shapes[i];
    if (shape.in_parallel(threads())) {
      run_segments(calls[i], shape, kernels);
      continue;
    }
    for (int64_t index = 0; index < shape.batch * shape.num_kv_heads; ++index) {
      tasks.push_back({&calls[i], &shape, index});
    }
  }
  parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t task) {
    const auto& [args, shape, index] = tasks[static_cast<size_t>(task)];
    kernels.head(*args, *shape, index / shape->num_kv_heads, index % shape->num_kv_heads);
  });
}

}  // namespace mantissa::cpu
