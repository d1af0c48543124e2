// The CPU backend, host memory, and CPU-only details of kernels.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/backend/registry.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/cpu/fma_peak.h"
#include "core/cpu/memory.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/embedding/args.h"
#include "core/kernels/loss/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/test_tensor.h"

namespace mantissa::cpu {
namespace {

TEST(CpuBackend, IsRegisteredByLinkingIt) {
  const std::vector<std::string> names = backend_names();
  EXPECT_NE(std::find(names.begin(), names.end(), "cpu"), names.end());
  const auto backend = create_backend("cpu");
  EXPECT_EQ(backend->device(), Device{});
  for (const char* part : {"cpu: ", " thread", "oneDNN "}) {
    EXPECT_NE(backend->describe().find(part), std::string::npos) << backend->describe();
  }
}

// Resident memory of this process, from its page tables (/proc/self/statm may lag by hundreds of pages).
size_t resident_bytes() {
  malloc_trim(0);  // frees what the heap kept of earlier allocations
  std::ifstream rollup("/proc/self/smaps_rollup");
  rollup.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  std::string key;
  size_t kib = 0;
  EXPECT_TRUE(rollup >> key >> kib);
  EXPECT_EQ(key, "Rss:");
  return kib * 1024;
}

// Address space of this process.
size_t mapped_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t pages = 0;
  EXPECT_TRUE(statm >> pages);
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(HostMemory, IsAlignedAndZeroed) {
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{4097}, (size_t{2} << 20) - 1, size_t{2} << 20, (size_t{5} << 20) + 3}) {
    const auto storage = allocate_host(bytes, "a test", Device{});
    EXPECT_EQ(storage->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(storage->data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(storage->data(), storage->data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(storage->data(), bytes, std::byte{1});  // all bytes are writable
  }
}

TEST(HostMemory, BlocksOfManyPagesTakeWhatTheyWereAskedFor) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  constexpr size_t kHugePage = size_t{2} << 20;
  constexpr size_t kBlocks = 20, kBytes = kHugePage + kHugePage / 10 + 1;  // whole huge pages would take twice that
  std::vector<std::shared_ptr<Storage>> blocks;
  blocks.reserve(kBlocks);
  const size_t resident = resident_bytes(), mapped = mapped_bytes();
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(allocate_host(kBytes, "a test", Device{}));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()->data()) % kHugePage, 0u) << "cannot start with a huge page";
    std::fill_n(blocks.back()->data(), kBytes, std::byte{1});
  }
  constexpr size_t kAsked = kBlocks * kBytes;
  const size_t limit = kAsked + kAsked / 50 + kBlocks * page;
  const size_t resident_growth = resident_bytes() - resident;
  EXPECT_GE(resident_growth, kAsked);
  EXPECT_LE(resident_growth, limit);
  EXPECT_LE(mapped_bytes() - mapped, limit);  // also if the system grants no huge pages
  blocks.clear();
  EXPECT_LE(resident_bytes(), resident + kAsked / 50) << "given back";
}

TEST(HostMemory, ReservedSpaceTakesNoMemoryUntilTouched) {
  const auto storage = reserve_host(size_t{1} << 37, Device{});
  storage->data()[0] = std::byte{1};
  storage->data()[storage->bytes() - 1] = std::byte{2};
}

TEST(HostMemory, SaysWhatForAndHowMuchWhenThereIsNone) {
  try {
    allocate_host(SIZE_MAX - 5, "the optimizer's moments", Device{});
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("the optimizer's moments"), std::string::npos) << message;
    EXPECT_NE(message.find("17592186044416.0 MiB"), std::string::npos) << message;  // 2^64 bytes
    EXPECT_NE(message.find("MiB of host memory are free. Lower train.micro_batch"), std::string::npos) << message;
    EXPECT_EQ(error.code(), ExitCode::kMemory);
  }
  EXPECT_THROW(allocate_host(size_t{1} << 60, "x", Device{}), MemoryError);
}

// Any supported processor does at least one 4-byte multiply-add every four cycles at 1 GHz and at most four of 64 bytes
// a cycle at 6 GHz. A wrong count of operations, or a burst that the compiler removed, is outside this range.
TEST(FmaPeak, IsPlausible) {
  const FmaPeak peak = measure_fma_peak(DType::kF32, 1);
  EXPECT_GT(peak.flops, 0.5e9);
  EXPECT_LT(peak.flops, 4 * 32 * 6e9);
  EXPECT_GT(std::strlen(peak.instruction), 0u);
}

// bf16 may use the fp32 instruction, so only load on the machine makes it slower. fp16 always uses it.
TEST(FmaPeak, OfSixteenBitsTakesTheBestInstruction) {
  const FmaPeak fp32 = measure_fma_peak(DType::kF32, 1), bf16 = measure_fma_peak(DType::kBF16, 1);
  EXPECT_GT(bf16.flops, 0.25 * fp32.flops);
  EXPECT_STREQ(measure_fma_peak(DType::kF16, 1).instruction, fp32.instruction);
}

TEST(FmaPeak, RefusesWhatHasNoPeak) {
  EXPECT_THROW(measure_fma_peak(DType::kI32, 1), ContractError);
  EXPECT_THROW(measure_fma_peak(DType::kF32, 0), ContractError);
}

// ---- CPU casts keep a NaN's payload as the scalar conversion does, on every instruction set. A vector and its
// remainder give the same bits.

using kernel_test::device_under_test;
using kernel_test::elements_of;
using kernel_test::make_elements;
using kernel_test::make_unwritten;

template <typename T>
void check_narrowing() {
  std::vector<float> nans;
  for (uint32_t payload = 1; payload < 0x800000u; payload = payload * 3 + 1) {
    nans.push_back(std::bit_cast<float>(0x7f800000u | payload));
    nans.push_back(std::bit_cast<float>(0xff800000u | payload));
  }
  const Tensor src = make_elements(nans), dst = make_unwritten(DTypeOf<T>::value, src.shape());
  run(CastArgs{.src = src, .dst = dst});
  const std::vector<T> actual = elements_of<T>(dst);
  for (size_t i = 0; i < nans.size(); ++i) EXPECT_EQ(actual[i].bits, from_float<T>(nans[i]).bits) << i;
}

template <typename T>
void check_widening() {
  std::vector<T> nans;
  for (uint32_t code = 0; code < 0x10000u; ++code) {
    const T value{static_cast<uint16_t>(code)};
    if (std::isnan(to_float(value))) nans.push_back(value);
  }
  const Tensor src = make_elements(nans), dst = make_unwritten(DType::kF32, src.shape());
  run(CastArgs{.src = src, .dst = dst});
  const std::vector<float> actual = elements_of<float>(dst);
  for (size_t i = 0; i < nans.size(); ++i) {
    // Arithmetic quiets signalling NaNs.
    const uint32_t expected = std::bit_cast<uint32_t>(to_float(nans[i])) | 0x00400000u;
    EXPECT_EQ(std::bit_cast<uint32_t>(actual[i]), expected) << i;
  }
}

TEST(CastNaN, KeepsItsPayload) {
  device_under_test().on_each_variant([] {
    check_narrowing<BFloat16>();
    check_narrowing<Float16>();
    check_widening<BFloat16>();
    check_widening<Float16>();
  });
}

// ---- Token ids and targets in host memory are checked before use as addresses.

using kernel_test::expect_contract_error;
using kernel_test::make_indices;
using kernel_test::make_tensor;

TEST(IndexCheck, RefusesATokenOutsideOfTheTable) {
  const std::vector<double> zeros(12);
  const Tensor table = make_tensor(DType::kF32, {4, 3}, zeros), y = make_unwritten(DType::kF32, {2, 3});
  const auto forward = [&](std::vector<int32_t> tokens) {
    return [=] { run(EmbeddingForwardArgs{.tokens = make_indices(tokens), .token_table = table, .y = y}); };
  };
  expect_contract_error(forward({0, 4}), "[embedding] tokens must be in [0, 4), got 4 at index 1");
  expect_contract_error(forward({-1, 0}), "got -1 at index 0");
  const auto backward = [&] {
    run(EmbeddingBackwardArgs{.tokens = make_indices({0, 4}), .dy = y, .d_token_table = table});
  };
  expect_contract_error(backward, "[embedding backward] tokens must be in [0, 4), got 4 at index 1");
}

TEST(IndexCheck, RefusesDocumentsThatDoNotFollowOneAnother) {
  const Tensor x = make_tensor(DType::kF32, {6, 2}, std::vector<double>(12));
  const auto rotate = [&](std::vector<int32_t> starts) {
    return [=] {
      run(RopeArgs{.x = x,
                   .starts = make_indices(starts),
                   .y = x,
                   .sequence_length = 3,
                   .row_heads = 1,
                   .rotated_heads = 1,
                   .head_dim = 2});
    };
  };
  rotate({0, 1, 1, 0, 0, 2})();
  expect_contract_error(rotate({0, 0, 1, 0, 0, 0}),
                        "[rope] starts must repeat the row before or be the row's index in its sequence, 2, got 1 in "
                        "row 2");
  expect_contract_error(rotate({0, 0, 0, 0, -1, 0}), "in its sequence, 1, got -1 in row 4");
  // The second sequence does not continue the first one's document.
  expect_contract_error(rotate({0, 1, 1, 1, 1, 1}), "in its sequence, 0, got 1 in row 3");
}

TEST(IndexCheck, RefusesATargetOutsideOfTheVocabulary) {
  const Tensor logits = make_tensor(DType::kF32, {2, 3}, std::vector<double>(6));
  const Tensor rows = make_tensor(DType::kF32, {2}, {0, 0}), sum = make_unwritten(DType::kF32, {1});
  const auto forward = [&] {
    run(CrossEntropyForwardArgs{
        .logits = logits, .targets = make_indices({0, 3}), .losses = rows, .lse = rows, .loss_sum = sum});
  };
  expect_contract_error(forward, "[cross_entropy] targets must be in [0, 3) or ignore_index -100, got 3 in row 1");
  const auto backward = [&] {
    run(CrossEntropyBackwardArgs{.logits = logits,
                                 .targets = make_indices({-1, 0}),
                                 .lse = rows,
                                 .scale = make_tensor(DType::kF32, {1}, {1.0})});
  };
  expect_contract_error(backward, "[cross_entropy backward] targets must be in [0, 3) or ignore_index -100, got -1");
}

}  // namespace
}  // namespace mantissa::cpu
