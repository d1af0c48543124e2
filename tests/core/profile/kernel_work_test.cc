// Formulas of FLOPs and bytes against numbers worked out by hand for small shapes.
#include "core/kernels/kernel_args.h"

#include <gtest/gtest.h>

#include "core/kernels/activation/args.h"
#include "core/kernels/attention/args.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/embedding/args.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/loss/args.h"
#include "core/kernels/norm/args.h"
#include "core/kernels/optimizer/args.h"
#include "core/kernels/probe/args.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/reduction/args.h"
#include "tests/core/tensor/host_storage.h"

namespace mantissa {
namespace {

Tensor tensor(DType dtype, Shape shape) {
  return Tensor(testing::host_storage(static_cast<size_t>(shape.numel() * size_bytes(dtype))), dtype, shape);
}
Tensor f32(Shape shape) { return tensor(DType::kF32, shape); }
Tensor bf16(Shape shape) { return tensor(DType::kBF16, shape); }

TEST(KernelWork, AProductIsTwoFlopForEachMultiplyAdd) {
  const GemmArgs forward{.a = bf16({3, 5}), .b = bf16({5, 7}), .c = bf16({3, 7}), .bias = f32({7})};
  EXPECT_EQ(work_of(forward).flops, 2.0 * 3 * 5 * 7);
  EXPECT_EQ(work_of(forward).bytes, 2.0 * (3 * 5 + 5 * 7 + 3 * 7) + 4.0 * 7);
  EXPECT_EQ(work_of(forward).dtype, DType::kBF16);
  // The same extents in the other storage order. An accumulated result is also read.
  const GemmArgs weight_gradient{.a = bf16({5, 3}),
                                 .b = bf16({7, 5}),
                                 .c = f32({3, 7}),
                                 .trans_a = Transpose::kYes,
                                 .trans_b = Transpose::kYes,
                                 .mode = GradientMode::kAccumulate};
  EXPECT_EQ(work_of(weight_gradient).flops, 2.0 * 3 * 5 * 7);
  EXPECT_EQ(work_of(weight_gradient).bytes, 2.0 * (3 * 5 + 5 * 7) + 2 * 4.0 * 3 * 7);
}

TEST(KernelWork, AttentionThroughACacheReadsTheKeysThatItMaySee) {
  // S = 2, T = 10, R = 3, H = 4, KV = 2, D = 8.
  const AttentionShape shape{.batch = 2, .sequence_length = 10, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8};
  const Tensor rows = tensor(DType::kI32, {3});
  AttentionDecodeArgs decode{.qkv = bf16({3, 64}),
                             .sequences = rows,
                             .positions = rows,
                             .cache = bf16({2, 4, 10, 8}),
                             .out = bf16({3, 32}),
                             .shape = shape};
  EXPECT_EQ(work_of(decode).flops, 4.0 * 3 * 10 * 4 * 8);
  EXPECT_EQ(work_of(decode).bytes, 2.0 * 3 * (10 * 32 + 64 + 32) + 2 * 4.0 * 3);
  decode.shape.window = 6;
  EXPECT_EQ(work_of(decode).flops, 4.0 * 3 * 6 * 4 * 8);
  EXPECT_EQ(variant_of(decode), "2x10 4 heads of 8, 2 of keys, causal, window 6");
  const AttentionAppendArgs append{
      .qkv = decode.qkv, .sequences = rows, .positions = rows, .cache = decode.cache, .shape = shape};
  EXPECT_EQ(work_of(append).bytes, 2 * 2.0 * 3 * 32 + 2 * 4.0 * 3);
}

TEST(KernelWork, AttentionCountsThePairsThatTheMaskLetsThrough) {
  // B = 2, T = 4, H = 6, KV = 3, D = 8.
  AttentionForwardArgs forward{
      .qkv = bf16({8, 12 * 8}),
      .out = bf16({8, 6 * 8}),
      .lse = f32({2, 6, 4}),
      .shape = {
          .batch = 2, .sequence_length = 4, .num_heads = 6, .num_kv_heads = 3, .head_dim = 8, .mask = Mask::kNone}};
  EXPECT_EQ(work_of(forward).flops, 4.0 * 2 * 6 * 8 * 16);
  EXPECT_EQ(work_of(forward).bytes, 2.0 * 8 * (96 + 48) + 4.0 * 48);
  forward.shape.mask = Mask::kCausal;
  EXPECT_EQ(work_of(forward).flops, 4.0 * 2 * 6 * 8 * 10);  // 1 + 2 + 3 + 4 pairs
  AttentionForwardArgs limited = forward;
  limited.shape.window = 2;
  EXPECT_EQ(work_of(limited).flops, 4.0 * 2 * 6 * 8 * 7);  // 1 + 2 + 2 + 2 pairs
  limited.shape.window = 9;
  limited.starts = tensor(DType::kI32, {8});
  EXPECT_EQ(work_of(limited).flops, work_of(forward).flops);  // a dry run does not know the documents
  EXPECT_EQ(work_of(limited).bytes, work_of(forward).bytes + 4.0 * 8);
  EXPECT_EQ(variant_of(limited), "2x4 6 heads of 8, 3 of keys, causal, window 9, documents");
  const AttentionBackwardArgs backward{
      .qkv = forward.qkv,
      .out = forward.out,
      .lse = forward.lse,
      .d_out = bf16({8, 48}),
      .d_qkv = bf16({8, 96}),
      .shape = {.batch = 2, .sequence_length = 4, .num_heads = 6, .num_kv_heads = 3, .head_dim = 8}};
  EXPECT_EQ(work_of(backward).flops, 2.5 * work_of(forward).flops);
  EXPECT_EQ(work_of(backward).bytes, 2.0 * 8 * 2 * (96 + 48) + 4.0 * 48);
  EXPECT_EQ(work_of(backward).dtype, DType::kBF16);
}

TEST(KernelWork, ElementwiseOperationsReadAndWriteTheirOperandsOnce) {
  const Tensor x = bf16({4, 6}), y = bf16({4, 6}), wide = f32({4, 6});
  EXPECT_EQ(work_of(CastArgs{.src = wide, .dst = x}).bytes, 24.0 * (4 + 2));
  EXPECT_EQ(work_of(AddArgs{.a = wide, .b = x, .y = wide}).bytes, 24.0 * (4 + 2 + 4));
  EXPECT_EQ(work_of(GeluForwardArgs{.x = x, .y = y}).bytes, 24.0 * 4);
  EXPECT_EQ(work_of(GeluBackwardArgs{.x = x, .dy = y, .dx = y}).bytes, 24.0 * 6);
  EXPECT_EQ(work_of(SwigluForwardArgs{.x = x, .y = bf16({4, 3})}).bytes, 24.0 * 3);
  EXPECT_EQ(work_of(SwigluBackwardArgs{.x = x, .dy = bf16({4, 3}), .dx = y}).bytes, 24.0 * 5);
  EXPECT_EQ(work_of(DropoutArgs{.x = x, .y = y}).bytes, 24.0 * 4);
  EXPECT_EQ(work_of(ColumnSumArgs{.x = x, .out = f32({6}), .mode = GradientMode::kAccumulate}).bytes,
            24.0 * 2 + 2 * 24);
  EXPECT_EQ(work_of(SumContributionsArgs{.contributions = x, .out = f32({6})}).bytes, 24.0 * 2 + 24);
  // Four ranks have 1, 2, 2 and 2 lanes, each a node: a row of the eight is not read.
  EXPECT_EQ(
      work_of(SumContributionsArgs{.contributions = f32({8, 6}), .out = f32({6}), .group = {.lanes = 7, .ranks = 4}})
          .bytes,
      7 * 24.0 + 24);
  EXPECT_EQ(work_of(AddArgs{.a = x, .b = x, .y = x}).flops, 0.0);
  // Rotated in place: the last of three heads is not touched.
  EXPECT_EQ(work_of(RopeArgs{.x = x, .y = x, .row_heads = 3, .rotated_heads = 2, .head_dim = 2}).bytes,
            24.0 * 4 * 2 / 3);
  EXPECT_EQ(work_of(RopeArgs{.x = x, .y = y, .row_heads = 3, .rotated_heads = 2, .head_dim = 2}).bytes, 24.0 * 4);
}

TEST(KernelWork, NormsReadAndWriteTheirOperandsOnceAndWhatTheyAccumulateTwice) {
  const Tensor x = bf16({4, 6}), row = f32({6}), statistic = f32({4});
  const LayerNormForwardArgs plain{.x = x, .weight = row, .bias = row, .y = x, .mean = statistic, .rstd = statistic};
  EXPECT_EQ(work_of(plain).bytes, 2 * 48.0 + 2 * 24 + 2 * 16);
  LayerNormForwardArgs with_sum = plain;
  with_sum.residual = with_sum.sum = x;
  EXPECT_EQ(work_of(with_sum).bytes, work_of(plain).bytes + 2 * 48);
  const LayerNormBackwardArgs backward{.x = x,
                                       .dy = x,
                                       .weight = row,
                                       .mean = statistic,
                                       .rstd = statistic,
                                       .dx = x,
                                       .d_weight = row,
                                       .d_bias = row,
                                       .mode = GradientMode::kAccumulate,
                                       .bias_mode = GradientMode::kAccumulate};
  EXPECT_EQ(work_of(backward).bytes, 2 * 48.0 + 24 + 2 * 16 + 2 * 48 + 24 + 2 * 24);
  EXPECT_EQ(work_of(RmsNormForwardArgs{.x = x, .weight = row, .y = x, .rstd = statistic}).bytes, 2 * 48.0 + 24 + 16);
  const RmsNormBackwardArgs rms{
      .x = x, .dy = x, .weight = row, .rstd = statistic, .dx = x, .d_weight = row, .mode = GradientMode::kAccumulate};
  EXPECT_EQ(work_of(rms).bytes, 2 * 48.0 + 24 + 16 + 2 * 48 + 24);
  // Half of the rows: heads 1 and 2 of 4.
  const Tensor of_heads = f32({2});
  const RmsNormForwardArgs heads{.x = x, .weight = row, .y = x, .rstd = of_heads, .heads = {4, 1, 2}};
  EXPECT_EQ(work_of(heads).bytes, 48.0 + 24 + 8);
  EXPECT_EQ(variant_of(heads), "2 heads of 4");
}

TEST(KernelWork, EmbeddingMovesTheRowsThatTokensName) {
  // 6 tokens in 2 sequences of 3; a vocabulary of 4 and 10 positions, 5 channels.
  const Tensor tokens = tensor(DType::kI32, {6}), y = bf16({6, 5});
  EmbeddingForwardArgs forward{.tokens = tokens, .token_table = bf16({4, 5}), .y = y, .sequence_length = 3};
  EXPECT_EQ(work_of(forward).bytes, 24.0 + 2 * (6 * 5 + 6 * 5));
  forward.position_table = f32({10, 5});
  EXPECT_EQ(work_of(forward).bytes, 24.0 + 2 * (6 * 5 + 6 * 5) + 4 * 3 * 5);
  EmbeddingBackwardArgs backward{.tokens = tokens, .dy = y, .d_token_table = f32({4, 5}), .sequence_length = 3};
  EXPECT_EQ(work_of(backward).bytes, 24.0 + 2 * 30 + 4 * 20);
  backward.token_mode = GradientMode::kAccumulate;
  EXPECT_EQ(work_of(backward).bytes, 24.0 + 2 * 30 + 2 * 4 * 20);  // reads at most the whole table
  backward.d_token_table = f32({100, 5});
  backward.d_position_table = f32({10, 5});
  EXPECT_EQ(work_of(backward).bytes, 24.0 + 2 * 30 + 2 * 4 * 30 + 4 * 50);
}

TEST(KernelWork, LossAndUpdate) {
  const Tensor logits = bf16({6, 8}), targets = tensor(DType::kI32, {6}), rows = f32({6}), one = f32({1});
  EXPECT_EQ(work_of(CrossEntropyForwardArgs{
                        .logits = logits, .targets = targets, .losses = rows, .lse = rows, .loss_sum = one})
                .bytes,
            96.0 + 3 * 24 + 4);
  EXPECT_EQ(work_of(CrossEntropyBackwardArgs{.logits = logits, .targets = targets, .lse = rows, .scale = one}).bytes,
            2 * 96.0 + 2 * 24 + 4);
  const Tensor master = f32({10}), gradient = f32({10}), v = f32({10}), m = bf16({10}), weight = bf16({10});
  AdamWArgs update{.gradient = gradient, .master = master, .m = m, .v = v, .weight = weight};
  EXPECT_EQ(work_of(update).bytes, 40.0 + 2 * (40 + 20 + 40) + 20);
  update.weight = master;  // an fp32 weight is the master
  EXPECT_EQ(work_of(update).bytes, 40.0 + 2 * (40 + 20 + 40));
  EXPECT_EQ(work_of(AdamWArgs{.master = master, .weight = weight}).bytes, 40.0 + 20);
  const Tensor codes = tensor(DType::kU8, {10}), scale = f32({1});
  AdamWArgs narrow{
      .gradient = gradient, .m = codes, .v = codes, .weight = weight, .m_absmax = scale, .v_absmax = scale};
  EXPECT_EQ(work_of(narrow).bytes, 40.0 + 2 * (20 + 10 + 10 + 4 + 4));
  narrow.compensation = m;
  EXPECT_EQ(work_of(narrow).bytes, 40.0 + 2 * (20 + 20 + 10 + 10 + 4 + 4));
  const Tensor record = tensor(DType::kU8, {sizeof(TensorStats)});
  EXPECT_EQ(work_of(TensorStatsArgs{.x = logits, .record = record}).bytes, 96.0 + 2 * sizeof(TensorStats));
  EXPECT_EQ(
      work_of(SumContributionsArgs{.contributions = logits, .out = weight, .accumulate = DType::kF32, .record = record})
          .bytes,
      96.0 + 20 + 2 * sizeof(TensorStats));
  const Tensor stats = tensor(DType::kU8, {3 * sizeof(TensorStats)});
  const Tensor byte = tensor(DType::kU8, {1});
  EXPECT_EQ(work_of(RecordVerdictArgs{.losses = rows, .stats = stats, .plan = byte, .record = record}).bytes,
            25.0 + 4 * sizeof(TensorStats));
  EXPECT_EQ(
      work_of(DecideUpdateArgs{.records = record, .plan = byte, .hold = byte, .control = byte, .decision = byte}).bytes,
      sizeof(TensorStats) + 4.0);
}

TEST(KernelWork, CodesAndTheirScales) {
  const Tensor src = bf16({6, 8}), codes = tensor(DType::kU8, {6, 8}), turned = tensor(DType::kU8, {8, 6});
  const Tensor scales = f32({4}), record = tensor(DType::kU8, {sizeof(QuantizeRecord)});
  EXPECT_EQ(work_of(QuantizeArgs{.src = src,
                                 .axis = BlockAxis::kBoth,
                                 .record = record,
                                 .codes = codes,
                                 .transposed_codes = turned,
                                 .code_scales = scales,
                                 .transposed_code_scales = scales})
                .bytes,
            96.0 + 2 * 48 + 2 * 16 + 2 * sizeof(QuantizeRecord));
}

TEST(KernelWork, Probes) {
  const Tensor x = bf16({6, 8}), w = f32({10}), bins = tensor(DType::kU8, {sizeof(ExponentHistogram)});
  EXPECT_EQ(work_of(ExponentHistogramArgs{.x = x, .record = bins}).bytes, 96.0 + 2 * sizeof(ExponentHistogram));
  EXPECT_EQ(work_of(ExponentHistogramArgs{.x = x, .record = bins, .mode = GradientMode::kWrite}).bytes,
            96.0 + sizeof(ExponentHistogram));
  const Tensor record = tensor(DType::kU8, {sizeof(UpdateStagnation)});
  EXPECT_EQ(work_of(UpdateStagnationArgs{.weight = w, .delta = w, .record = record}).bytes,
            2 * 40.0 + 2 * sizeof(UpdateStagnation));
}

TEST(KernelWork, ComparisonsReadTheirOperands) {
  const Tensor x = f32({4, 6}), losses = tensor(DType::kU8, {sizeof(FormatLosses)});
  EXPECT_EQ(work_of(RoundingLossesArgs{.src = x, .format = {Format::kE4M3, Scaling::kBlock}, .record = losses}).bytes,
            2 * 96.0 + 2 * sizeof(FormatLosses));
  EXPECT_EQ(work_of(RoundingLossesArgs{.src = x,
                                       .format = {Format::kE4M3, Scaling::kDelayed},
                                       .scale = f32({1}),
                                       .record = losses,
                                       .mode = GradientMode::kWrite})
                .bytes,
            96.0 + 4.0 + sizeof(FormatLosses));
  const Tensor sums = tensor(DType::kU8, {sizeof(ErrorSums)});
  EXPECT_EQ(work_of(CompareArgs{.x = x, .reference = x, .record = sums}).bytes, 2 * 96.0 + 2 * sizeof(ErrorSums));
}

TEST(KernelWork, CopiesBetweenHostAndDeviceAreBoundByTheirLink) {
  const Tensor host = f32({10});
  const Tensor device(std::make_shared<Storage>(host.raw(), 40, Device{Device::Kind::kCuda, 0}, nullptr), DType::kF32,
                      {10});
  EXPECT_EQ(work_of_copy(host, f32({10})).bytes, 80.0);
  EXPECT_EQ(work_of_copy(host, f32({10})).bound, Bound::kDevice);
  EXPECT_EQ(work_of_copy(host, device).bytes, 40.0);
  EXPECT_EQ(work_of_copy(device, host).bound, Bound::kOther);
  EXPECT_EQ(work_of_transfer(device).bytes, 40.0);
  EXPECT_EQ(work_of_transfer(device).bound, Bound::kOther);
  EXPECT_EQ(work_of_transfer(host).bytes, 80.0);  // memory reads and writes
  EXPECT_EQ(work_of(FillArgs{.dst = host}).bytes, 40.0);
}

}  // namespace
}  // namespace mantissa
