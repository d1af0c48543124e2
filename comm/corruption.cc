#include "comm/corruption.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/quant/dynamic_map.h"

namespace mantissa {
namespace {

const char* describe(CorruptData data) {
  switch (data) {
    case CorruptData::kMaster:
      return "master weight";
    case CorruptData::kWeight:
      return "weight (its own master)";
    case CorruptData::kCompensation:
      return "compensation";
    case CorruptData::kM:
      return "first moment";
    case CorruptData::kV:
      return "second moment";
    case CorruptData::kMAbsmax:
      return "scales of the first moment";
    case CorruptData::kVAbsmax:
      return "scales of the second moment";
    case CorruptData::kWorkingWeight:
      return "working weight";
    case CorruptData::kSentGradient:
      return "gradient on the wire";
    case CorruptData::kSummedGradient:
      return "summed gradient on the wire";
    case CorruptData::kGradient:
      return "gradient";
  }
  return "";
}

// Elements of an item.
int64_t unit_of(CorruptData data) {
  return data == CorruptData::kMAbsmax || data == CorruptData::kVAbsmax ? kDynamicBlock : 1;
}

}  // namespace

Corruption corruption_of(CorruptData data, int parameter, int rank, int64_t begin, int64_t count,
                         const Digest& expected, const Digest& found) {
  Corruption corruption{
      .data = data, .parameter = parameter, .rank = rank, .begin = begin, .count = count, .part = begin};
  const int64_t unit = unit_of(data);
  const ChangedTile changed = changed_tile(expected, found, (count + unit - 1) / unit);
  if (changed.begin < 0) return corruption;
  corruption.begin = begin + changed.begin * unit;
  corruption.count = std::min(kDigestTile * unit, count - changed.begin * unit);
  corruption.bit = changed.bit;
  return corruption;
}

std::string to_text(const Corruption& corruption, const ParameterSet& parameters, std::span<const std::string> hosts) {
  const auto rank_text = [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    return fmt::format("rank {}", rank) +
           (index < hosts.size() ? fmt::format(" (node {})", hosts[index]) : std::string());
  };
  std::string text = corruption.rank < 0 ? std::string("ranks differ") : rank_text(corruption.rank);
  if (corruption.receiver >= 0) text += " to " + rank_text(corruption.receiver);
  text += fmt::format(": {} of '{}', ", describe(corruption.data), parameters[corruption.parameter].name);
  text += fmt::format("elements [{}, {})", corruption.begin, corruption.begin + corruption.count);
  if (corruption.bit >= 0) text += fmt::format(" (bit {})", corruption.bit);
  if (corruption.update > 0) text += fmt::format(", read by update {}", corruption.update);
  return text;
}

std::vector<Corruption> gather_findings(Communicator& communicator, std::vector<Corruption> mine) {
  if (mine.size() > kMostFindings) mine.resize(kMostFindings);
  std::vector<Corruption> all;
  for (const std::vector<Corruption>& findings : all_gather_arrays(communicator, mine)) {
    all.insert(all.end(), findings.begin(), findings.end());
  }
  return all;
}

}  // namespace mantissa
