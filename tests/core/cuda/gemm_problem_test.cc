// The description of a product for the GEMM library, and the file of choices.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <thread>

#include "core/kernels/fp8_gemm_support.h"
#include "core/kernels/gemm/cache_cublaslt.h"
#include "core/kernels/gemm/problem_cublaslt.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa::cuda {
namespace {

TEST(GemmProblem, AlignmentIsThePowerOfTwoThatDividesTheAddress) {
  const auto of = [](uintptr_t address) { return gemm_alignment(reinterpret_cast<const void*>(address)); };
  EXPECT_EQ(of(0), 0u);
  EXPECT_EQ(of(0x1001), 1u);
  EXPECT_EQ(of(0x1002), 2u);
  EXPECT_EQ(of(0x1004), 4u);
  EXPECT_EQ(of(0x1018), 8u);
  EXPECT_EQ(of(0x1010), 16u);
  EXPECT_EQ(of(0x1000), 16u);
}

TEST(GemmProblem, DifferentKeysHaveDifferentTexts) {
  const GemmKey key{.m = 2, .n = 3, .k = 4, .a_stride = 4, .b_stride = 3, .c_stride = 3};
  std::vector<GemmKey> keys(1, key);
  for (int64_t GemmKey::*extent :
       {&GemmKey::m, &GemmKey::n, &GemmKey::k, &GemmKey::a_stride, &GemmKey::b_stride, &GemmKey::c_stride}) {
    keys.emplace_back(key).*extent = 99;
  }
  for (uint32_t GemmKey::*alignment : {&GemmKey::a_alignment, &GemmKey::b_alignment, &GemmKey::c_alignment,
                                       &GemmKey::bias_alignment, &GemmKey::aux_alignment}) {
    keys.emplace_back(key).*alignment = 8;
  }
  keys.emplace_back(key).dtype = DType::kBF16;
  keys.emplace_back(key).c_dtype = DType::kBF16;
  keys.emplace_back(key).trans_a = Transpose::kYes;
  keys.emplace_back(key).trans_b = Transpose::kYes;
  keys.emplace_back(key).fp32_math = Fp32Math::kTf32;
  keys.emplace_back(key).mode = GradientMode::kAccumulate;
  keys.emplace_back(key).scaled = true;
  for (const GemmEpilogue epilogue :
       {GemmEpilogue::kBias, GemmEpilogue::kGeluAux, GemmEpilogue::kGeluAuxBias, GemmEpilogue::kGeluGradient}) {
    keys.emplace_back(key).epilogue = epilogue;
  }
  keys.emplace_back(key).dtype = DType::kU8;
  keys.emplace_back(keys.back()).a_format = Format::kE5M2;
  keys.emplace_back(keys[keys.size() - 2]).b_format = Format::kE5M2;
  for (const BlockScaleLayout layout :
       {BlockScaleLayout::kRowBlocks128, BlockScaleLayout::kSquareBlocks128, BlockScaleLayout::kMicroTiles}) {
    keys.emplace_back(keys.back()).a_blocks = layout;
    keys.emplace_back(keys.back()).b_blocks = layout;
  }
  std::set<std::string> texts;
  for (const GemmKey& each : keys) texts.insert(to_text(each));
  EXPECT_EQ(texts.size(), keys.size());
  EXPECT_EQ(std::set<GemmKey>(keys.begin(), keys.end()).size(), keys.size());
}

TEST(GemmProblem, MessagesNameShapeDTypesAndAlignment) {
  const GemmKey key{.m = 8,
                    .n = 50257,
                    .k = 768,
                    .a_stride = 768,
                    .b_stride = 768,
                    .c_stride = 50257,
                    .dtype = DType::kBF16,
                    .c_dtype = DType::kF32,
                    .trans_b = Transpose::kYes,
                    .a_alignment = 16,
                    .b_alignment = 2,
                    .c_alignment = 4};
  EXPECT_EQ(describe(key),
            "8 x 50257 x 768 (M x N x K), bf16 -> fp32, b transposed, epilogue none, rows of a, b and c 768, 768 and "
            "50257 elements apart, addresses multiples of 16, 2 and 4 bytes");
  GemmKey scaled = key;
  scaled.scaled = true;
  EXPECT_NE(describe(scaled).find(", b transposed, scaled, epilogue none"), std::string::npos) << describe(scaled);
  GemmKey codes = key;
  codes.dtype = DType::kU8;
  codes.a_format = Format::kE5M2;
  EXPECT_NE(describe(codes).find("(M x N x K), e5m2 x e4m3 -> fp32, "), std::string::npos) << describe(codes);
}

using testing::read_file;
using testing::TempFolder;

GemmChoice choice(const std::string& key, uint64_t number) {
  return {.key = key, .algorithm = {number, 0xffffffffffffffff, 0, 3, 4, 5, 6, 0x0123456789abcdef}};
}

TEST(GemmCache, ALineGivesBackItsChoice) {
  const GemmChoice given = choice("16 32 48 bf16 nt", 7);
  const std::string line = to_line(given);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(parse_line(line), given);
}

TEST(GemmCache, NoDamagedLineIsTaken) {
  const std::string line = to_line(choice("16 32 48 bf16 nt", 7));
  for (size_t i = 0; i < line.size(); ++i) {
    std::string damaged = line;
    damaged[i] = damaged[i] == '1' ? '2' : '1';
    EXPECT_FALSE(parse_line(damaged)) << "character " << i;
    EXPECT_FALSE(parse_line(line.substr(0, i))) << "first " << i << " characters";
    damaged = line;
    damaged.erase(i, 1);
    EXPECT_FALSE(parse_line(damaged)) << "without character " << i;
  }
  EXPECT_FALSE(parse_line(line + "0"));
  EXPECT_FALSE(parse_line("# a comment"));
  EXPECT_FALSE(parse_line("\t" + line));
}

TEST(GemmCache, RemembersFromRunToRun) {
  const TempFolder folder;
  const std::string path = folder.file("choices.txt");
  GemmCache first(path);
  EXPECT_EQ(first.find("p"), std::nullopt);
  EXPECT_EQ(first.record(choice("p", 1), {}), choice("p", 1).algorithm);
  EXPECT_EQ(first.record(choice("q", 2), {}), choice("q", 2).algorithm);
  GemmCache second(path);
  EXPECT_EQ(second.find("p"), choice("p", 1).algorithm);
  EXPECT_EQ(second.find("q"), choice("q", 2).algorithm);
  EXPECT_EQ(second.find("r"), std::nullopt);
}

TEST(GemmCache, TheFirstToWriteDecidesForAll) {
  const TempFolder folder;
  GemmCache mine(folder.file("choices.txt")), other(folder.file("choices.txt"));
  EXPECT_EQ(mine.find("p"), std::nullopt);
  EXPECT_EQ(other.record(choice("p", 1), {}), choice("p", 1).algorithm);
  EXPECT_EQ(mine.record(choice("p", 2), {}), choice("p", 1).algorithm);
  EXPECT_EQ(GemmCache(folder.file("choices.txt")).find("p"), choice("p", 1).algorithm);
  // An entry that another rank adds later is found, too.
  other.record(choice("q", 3), {});
  EXPECT_EQ(mine.find("q"), choice("q", 3).algorithm);
}

TEST(GemmCache, OnlyARefusedChoiceIsReplaced) {
  const TempFolder folder;
  GemmCache cache(folder.file("choices.txt"));
  cache.record(choice("p", 1), {});
  EXPECT_EQ(cache.record(choice("p", 2), choice("p", 9).algorithm), choice("p", 1).algorithm);
  EXPECT_EQ(cache.record(choice("p", 2), choice("p", 1).algorithm), choice("p", 2).algorithm);
  EXPECT_EQ(GemmCache(folder.file("choices.txt")).find("p"), choice("p", 2).algorithm);
}

TEST(GemmCache, DamagedAndForeignLinesAreIgnored) {
  const TempFolder folder;
  const std::string whole = to_line(choice("p", 1)), damaged = to_line(choice("q", 2)).substr(0, 50);
  const std::string path = folder.write("choices.txt", damaged + "\n\nhello\n" + whole + "\n" + whole.substr(3));
  GemmCache cache(path);
  EXPECT_EQ(cache.find("p"), choice("p", 1).algorithm);
  EXPECT_EQ(cache.find("q"), std::nullopt);
  cache.record(choice("r", 3), {});
  EXPECT_EQ(read_file(path), whole + "\n" + to_line(choice("r", 3)) + "\n");
}

TEST(GemmCache, ManyWritersLoseNothing) {
  constexpr int kWriters = 8, kEach = 20;
  const TempFolder folder;
  const std::string path = folder.file("choices.txt");
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&path, writer] {
      GemmCache cache(path);
      for (int i = 0; i < kEach; ++i) {
        const auto number = static_cast<uint64_t>(writer * kEach + i);
        cache.record(choice("p" + std::to_string(number), number), {});
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  GemmCache cache(path);
  for (uint64_t i = 0; i < kWriters * kEach; ++i) {
    ASSERT_EQ(cache.find("p" + std::to_string(i)), choice("", i).algorithm) << i;
  }
}

TEST(GemmCache, WithoutAFileItRemembersForItself) {
  GemmCache cache("");
  EXPECT_EQ(cache.find("p"), std::nullopt);
  EXPECT_EQ(cache.record(choice("p", 1), {}), choice("p", 1).algorithm);
  EXPECT_EQ(cache.find("p"), choice("p", 1).algorithm);
}

TEST(GemmCache, AFileThatCannotBeWrittenIsNoError) {
  GemmCache cache("/nowhere/choices.txt");
  EXPECT_EQ(cache.record(choice("p", 1), {}), choice("p", 1).algorithm);
  EXPECT_EQ(cache.find("p"), choice("p", 1).algorithm);
}

TEST(GemmCache, TheFileIsNamedByWhatChoicesDependOn) {
  EXPECT_EQ(
      cache_file_name(
          {.gpu = "NVIDIA H100 80GB HBM3", .major = 9, .minor = 0, .multiprocessors = 132, .library_version = 130100}),
      "gemm-2-NVIDIA-H100-80GB-HBM3-sm90-132-cublaslt130100.txt");
}

class GemmCacheFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* variable : {"MANTISSA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) unsetenv(variable);
  }
  const TempFolder folder_;
};

TEST_F(GemmCacheFolder, IsTheFirstOfThreeThatCanBeMade) {
  EXPECT_EQ(cache_folder(), "");
  setenv("HOME", folder_.file("home").c_str(), 1);
  EXPECT_EQ(cache_folder(), folder_.file("home/.cache/mantissa"));
  setenv("XDG_CACHE_HOME", folder_.file("xdg").c_str(), 1);
  EXPECT_EQ(cache_folder(), folder_.file("xdg/mantissa"));
  setenv("MANTISSA_CACHE_DIR", folder_.file("own").c_str(), 1);
  EXPECT_EQ(cache_folder(), folder_.file("own"));
  setenv("MANTISSA_CACHE_DIR", folder_.write("file", "").c_str(), 1);  // a file, so no folder can be made there
  EXPECT_EQ(cache_folder(), folder_.file("xdg/mantissa"));
}

// ---- The products of 8-bit operands that cuBLASLt is asked for, by GPU.

constexpr Fp8GemmSupport kEverySupport[] = {Fp8GemmSupport::kNone, Fp8GemmSupport::kTensorScaled,
                                            Fp8GemmSupport::kBlockScaled, Fp8GemmSupport::kMicroScaled,
                                            Fp8GemmSupport::kAll};

TEST(Fp8GemmSupport, FollowTheComputeCapabilityAndTheLibrary) {
  constexpr size_t kNewest = 130200;
  EXPECT_EQ(cublaslt_fp8_gemm_support(8, 0, kNewest), Fp8GemmSupport::kNone);
  EXPECT_EQ(cublaslt_fp8_gemm_support(8, 6, kNewest), Fp8GemmSupport::kNone);
  EXPECT_EQ(cublaslt_fp8_gemm_support(8, 9, kNewest), Fp8GemmSupport::kTensorScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(9, 0, kNewest), Fp8GemmSupport::kBlockScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(9, 0, 120900), Fp8GemmSupport::kBlockScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(9, 0, 120899), Fp8GemmSupport::kTensorScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(10, 0, kNewest), Fp8GemmSupport::kMicroScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(10, 3, 120800), Fp8GemmSupport::kMicroScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(10, 0, 120799), Fp8GemmSupport::kTensorScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(11, 0, kNewest), Fp8GemmSupport::kTensorScaled);
  EXPECT_EQ(cublaslt_fp8_gemm_support(12, 0, kNewest), Fp8GemmSupport::kTensorScaled);
}

TEST(Fp8GemmSupport, TakeScalesOfTheirKind) {
  for (const Fp8GemmSupport support : kEverySupport) {
    const bool block = support == Fp8GemmSupport::kBlockScaled || support == Fp8GemmSupport::kAll,
               micro = support == Fp8GemmSupport::kMicroScaled || support == Fp8GemmSupport::kAll;
    EXPECT_EQ(takes(support, Scaling::kDelayed), support != Fp8GemmSupport::kNone);
    EXPECT_EQ(takes(support, Scaling::kCurrent), support != Fp8GemmSupport::kNone);
    EXPECT_EQ(takes(support, Scaling::kBlock), block);
    EXPECT_EQ(takes(support, Scaling::kMicro), micro);
    EXPECT_FALSE(takes(support, Scaling::kTwoLevel));
  }
}

TEST(Fp8GemmSupport, MultiplyOperandsWithBlocksOfOneKind) {
  for (const Scaling a : kAllScalings) {
    for (const Scaling b : kAllScalings) {
      const Fp8Gemm product{
          .a = {Format::kE5M2, a}, .b = {Format::kE4M3, b}, .m = 16, .n = 16, .k = 256, .c = DType::kF32};
      EXPECT_EQ(multiplies(Fp8GemmSupport::kAll, product),
                a != Scaling::kTwoLevel && b != Scaling::kTwoLevel && block_length(a) == block_length(b))
          << name(a) << " x " << name(b);
    }
  }
}

TEST(Fp8GemmSupport, DoNotMultiplyWhatTheLibraryRefuses) {
  for (const Scaling scaling : {Scaling::kCurrent, Scaling::kBlock, Scaling::kMicro}) {
    const Fp8Gemm good{
        .a = {Format::kE4M3, scaling}, .b = {Format::kE4M3, scaling}, .m = 32, .n = 16, .k = 128, .has_bias = true};
    EXPECT_TRUE(multiplies(Fp8GemmSupport::kAll, good));
    const auto expect_refused = [&](auto&& change) {
      Fp8Gemm product = good;
      change(product);
      EXPECT_FALSE(multiplies(Fp8GemmSupport::kAll, product)) << name(scaling);
    };
    expect_refused([](Fp8Gemm& p) { p.a.format = p.b.format = Format::kE5M2; });
    expect_refused([](Fp8Gemm& p) { p.m = 24; });
    expect_refused([](Fp8Gemm& p) { p.n = 8; });
    expect_refused([](Fp8Gemm& p) { p.k = 136; });
    Fp8Gemm part_of_a_block = good;
    part_of_a_block.k = 144;
    EXPECT_EQ(multiplies(Fp8GemmSupport::kAll, part_of_a_block), block_length(scaling) == 0) << name(scaling);
    expect_refused([](Fp8Gemm& p) { p.c = DType::kF32; });
  }
}

}  // namespace
}  // namespace mantissa::cuda
