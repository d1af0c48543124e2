#include "core/kernels/attention/documents_cpu.h"

#include <algorithm>
#include <memory>

#include "core/kernels/documents.h"

namespace mantissa::cpu {

template <typename Args>
DocumentCalls<Args>::DocumentCalls(const Args& args) : args_(args), lse_(static_cast<size_t>(args.lse.numel())) {
  const int64_t length = args.shape.sequence_length, rows = args.shape.batch * length, heads = args.shape.num_heads;
  check_start_values(Args::kName.data(), args.starts, length);
  const int32_t* const starts = args.starts.template data<int32_t>();
  for (int64_t begin = 0, end = 1; begin < rows; begin = end++) {
    while (end < rows && starts[end] != end % length) ++end;
    Args call = args;
    for (Tensor* const operand : Args::operands(call)) {
      if (operand->shape().rank() == 2) *operand = operand->rows(begin, end - begin);
    }
    auto* const memory = reinterpret_cast<std::byte*>(lse_.data() + begin * heads);
    const auto bytes = static_cast<size_t>((end - begin) * heads) * sizeof(float);
    call.lse = Tensor(std::make_shared<Storage>(memory, bytes, args.lse.device(), Storage::Release()), DType::kF32,
                      {1, heads, end - begin});
    call.starts = {};
    call.shape.batch = 1;
    call.shape.sequence_length = end - begin;
    calls_.push_back(std::move(call));
  }
  std::stable_sort(calls_.begin(), calls_.end(),
                   [](const Args& a, const Args& b) { return a.shape.sequence_length > b.shape.sequence_length; });
}

template <typename Args>
template <typename Body>
void DocumentCalls<Args>::each_lse_row(const Body& body) {
  const AttentionShape& shape = args_.shape;
  for (const Args& call : calls_) {
    float* const own = call.lse.template data<float>();
    const int64_t row = (own - lse_.data()) / shape.num_heads, count = call.shape.sequence_length;
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      const int64_t at = shape.lse_offset(row / shape.sequence_length, head, row % shape.sequence_length);
      body(own + head * count, args_.lse.template data<float>() + at, count);
    }
  }
}

template <typename Args>
void DocumentCalls<Args>::read_lse() {
  each_lse_row([](float* own, const float* given, int64_t count) { std::copy_n(given, count, own); });
}

template <typename Args>
void DocumentCalls<Args>::write_lse() {
  each_lse_row([](const float* own, float* given, int64_t count) { std::copy_n(own, count, given); });
}

template class DocumentCalls<AttentionForwardArgs>;
template class DocumentCalls<AttentionBackwardArgs>;

}  // namespace mantissa::cpu
