// Faults that no test can notice, each with the reason why the kernel's result is still right. Tests must notice all
// others.
#pragma once

#include <string>
#include <vector>

namespace mantissa::kernel_test {

// A skipped wait, by its number among the waits of its file in line order.
struct HarmlessSkip {
  std::string file;
  size_t index;
  const char* why;
};

inline const HarmlessSkip kHarmlessSkips[] = {
    {"core/kernels/embedding/token_gradient.cu.cc", 4,
     "__syncwarp() after the counters are written: on a GPU it orders the write before the other lanes' next read, "
     "which the ballots between them do not. Here lanes run one at a time and meet at a ballot: memory is in order"},
};

// Shared memory one float too short, by the file of the launch.
struct HarmlessShortage {
  std::string file;
  const char* why;
};

inline const HarmlessShortage kHarmlessShortages[] = {
    {"core/kernels/attention/simt.cu.cc", "the rows of a SimtTile are padded, and it is the padding of the last row"},
};

// A wrong integer argument of a kernel, by its number.
struct HarmlessShift {
  std::string file, parameters;  // of the kernel: the file that launches it, and its parameter types
  std::vector<size_t> launches;  // launches of such kernels in that file, numbered in line order
  size_t index;
  std::vector<int> by;
  const char* why;
};

inline const HarmlessShift kHarmlessShifts[] = {
    {"core/kernels/attention/rows.cu.cc",
     "RowOperands, AttentionRowTerms, AttentionShape",
     {0, 1},
     3,
     {-1, +1},
     "heads of keys: the row terms, which are of queries, do not read their number"},
    {"core/kernels/attention/rows.cu.cc",
     "RowOperands, AttentionRowTerms, AttentionShape",
     {0, 1},
     5,
     {-1, +1},
     "the window: the row terms do not read it"},
    {"core/kernels/attention/rows.cu.cc",
     "Append",
     {0},
     4,
     {-1, +1},
     "the window: writing to the cache does not read it"},
    {"core/kernels/reduction/reduction.cu.cc",
     "ColumnSum",
     {0},
     2,
     {+1},
     "rows of a chunk: longer chunks cover all rows too, whose number bounds them; the order of additions is another"},
    {"core/kernels/probe/probe.cu.cc",
     "const BFloat16*, const float*, long int, long int, ErrorSums*",
     {0},
     1,
     {+1},
     "elements of a chunk: longer chunks cover all of them too, whose number bounds them"},
    {"core/kernels/probe/probe.cu.cc",
     "const Float16*, const float*, long int, long int, ErrorSums*",
     {0},
     1,
     {+1},
     "as for bf16"},
    {"core/kernels/probe/probe.cu.cc",
     "const float*, const float*, long int, long int, ErrorSums*",
     {0},
     1,
     {+1},
     "as for bf16"},
    {"core/kernels/norm/norm.cu.cc", "NormBackward", {0}, 2, {+1}, "rows of a chunk: as for column_sum"},
    {"core/kernels/embedding/embedding.cu.cc",
     "Rope, array",
     {0},
     6,
     {-1},
     "rows at once: with fewer there are more rounds"},
    {"core/kernels/probe/probe.cu.cc",
     "const BFloat16*, RoundingUnits, TensorFormat, const float*, FormatLosses*",
     {0},
     5,
     {+1},
     "units: one more has no rows"},
    {"core/kernels/probe/probe.cu.cc",
     "const Float16*, RoundingUnits, TensorFormat, const float*, FormatLosses*",
     {0},
     5,
     {+1},
     "as for bf16"},
    {"core/kernels/probe/probe.cu.cc",
     "const float*, RoundingUnits, TensorFormat, const float*, FormatLosses*",
     {0},
     5,
     {+1},
     "as for bf16"},
    {"core/kernels/embedding/token_gradient.cu.cc",
     "TokenGradient",
     {1},
     0,
     {-1, +1},
     "rows: adding the first sums of chunks, whose number is another argument, does not read them"},
    {"core/cuda/device/elementwise.h",
     "Dropout, long int, long int",
     {0, 1},
     4,
     {-1, +1},
     "the threshold is a probability, not a bound: one of 2^32 words more or fewer is dropped"},
};

}  // namespace mantissa::kernel_test
