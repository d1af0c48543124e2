#include "comm/communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace mantissa {
namespace {

std::map<std::string, CommunicatorEntry>& entries() {
  static std::map<std::string, CommunicatorEntry> instance;
  return instance;
}

std::string to_text(Device device) {
  return device.kind == Device::Kind::kCpu ? "host memory" : fmt::format("the memory of GPU {}", device.index);
}

void check_operand(const char* collective, const char* operand, const Tensor& tensor, Device device) {
  MANTISSA_CHECK(tensor.defined(), "[{}] {} is undefined", collective, operand);
  const Device got = tensor.device();
  const bool both_on_host = got.kind == Device::Kind::kCpu && device.kind == Device::Kind::kCpu;
  MANTISSA_CHECK(both_on_host || got == device, "[{}] {} must be in {}, it is in {}", collective, operand,
                 to_text(device), to_text(got));
}

void check_rows(const char* collective, const Tensor& receive, int ranks, Device device) {
  check_operand(collective, "recv", receive, device);
  MANTISSA_CHECK(receive.shape().rank() == 2 && receive.dim(0) == ranks, "[{}] recv must have shape ({}, n), got {}",
                 collective, ranks, receive.shape());
}

}  // namespace

bool register_communicator(const std::string& name, CommunicatorEntry entry) {
  return entries().emplace(name, std::move(entry)).second;
}

const CommunicatorEntry& find_communicator(const std::string& name) {
  const auto found = entries().find(name);
  if (found != entries().end()) return found->second;
  throw ConfigError(fmt::format("comm.backend: no transport named '{}'; this build has: {}", name,
                                fmt::join(communicator_names(), ", ")));
}

std::unique_ptr<Communicator> create_communicator(const std::string& name) { return find_communicator(name).create(); }

std::vector<std::string> communicator_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries()) names.push_back(name);
  return names;
}

void check_all_to_all(const Tensor& send, const Tensor& receive, int ranks, Device device) {
  check_operand("all_to_all", "send", send, device);
  check_rows("all_to_all", receive, ranks, device);
  MANTISSA_CHECK(send.shape() == receive.shape() && send.dtype() == receive.dtype(),
                 "[all_to_all] send must be like recv, {} of {}; got {} of {}", receive.shape(), receive.dtype(),
                 send.shape(), send.dtype());
}

void check_all_gather(const Tensor& send, const Tensor& receive, int ranks, Device device) {
  check_operand("all_gather", "send", send, device);
  check_rows("all_gather", receive, ranks, device);
  MANTISSA_CHECK(send.numel() == receive.dim(1) && send.dtype() == receive.dtype(),
                 "[all_gather] send must have {} elements of {}, a row of recv; got {} of {}", receive.dim(1),
                 receive.dtype(), send.numel(), send.dtype());
}

std::vector<std::vector<std::byte>> gather_varied(const GatherBytes& gather, std::span<const std::byte> mine) {
  constexpr size_t kPieceBytes = size_t{64} << 20;  // transports count the bytes of all ranks in an int
  const std::vector<uint64_t> sizes = gather_records(gather, uint64_t{mine.size()});
  const size_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::vector<std::byte>> all(sizes.size());
  for (size_t begin = 0; begin < longest; begin += kPieceBytes) {
    const auto part = mine.subspan(std::min(begin, mine.size()));
    std::vector<std::byte> piece(part.begin(), part.begin() + static_cast<int64_t>(std::min(part.size(), kPieceBytes)));
    piece.resize(std::min(longest - begin, kPieceBytes));
    const std::vector<std::byte> pieces = gather(piece);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const auto from = pieces.begin() + static_cast<int64_t>(rank * piece.size());
      all[rank].insert(all[rank].end(), from, from + static_cast<int64_t>(piece.size()));
    }
  }
  for (size_t rank = 0; rank < all.size(); ++rank) all[rank].resize(sizes[rank]);
  return all;
}

std::vector<std::vector<std::byte>> all_gather_varied(Communicator& communicator, std::span<const std::byte> mine) {
  return gather_varied([&](auto bytes) { return communicator.all_gather_bytes(bytes); }, mine);
}

std::vector<std::string> all_gather_texts(Communicator& communicator, std::string_view mine) {
  std::vector<std::string> texts;
  for (const std::vector<std::byte>& text : all_gather_varied(communicator, std::as_bytes(std::span(mine)))) {
    texts.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
  }
  return texts;
}

RankText first_text(Communicator& communicator, std::string_view mine) {
  int rank = 0;
  for (std::string& text : all_gather_texts(communicator, mine)) {
    if (!text.empty()) return {rank, std::move(text)};
    ++rank;
  }
  return {};
}

std::vector<std::vector<std::string>> all_gather_text_lists(Communicator& communicator,
                                                            const std::vector<std::string>& mine) {
  std::string joined;
  for (const std::string& text : mine) joined += text + '\0';
  std::vector<std::vector<std::string>> lists;
  for (const std::string& list : all_gather_texts(communicator, joined)) {
    lists.emplace_back();
    for (size_t begin = 0; begin < list.size(); begin += lists.back().back().size() + 1) {
      lists.back().push_back(list.substr(begin, list.find('\0', begin) - begin));
    }
  }
  return lists;
}

}  // namespace mantissa
