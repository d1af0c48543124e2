#include "comm/communicator.h"

#include <algorithm>

namespace mantissa {
namespace {

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

std::vector<std::string> gather_texts(const GatherBytes& gather, std::string_view mine) {
  constexpr size_t kPieceBytes = size_t{64} << 20;  // of one gather: transports count bytes of all ranks in an int
  const uint64_t my_size = mine.size();
  const std::vector<std::byte> size_bytes = gather(std::as_bytes(std::span(&my_size, 1)));
  std::vector<uint64_t> sizes(size_bytes.size() / sizeof(my_size));
  std::memcpy(sizes.data(), size_bytes.data(), size_bytes.size());
  const size_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::string> texts(sizes.size());
  for (size_t begin = 0; begin < longest; begin += kPieceBytes) {
    std::string piece(mine.substr(std::min(begin, mine.size()), kPieceBytes));
    piece.resize(std::min(kPieceBytes, longest - begin));
    const std::vector<std::byte> all = gather(std::as_bytes(std::span(piece)));
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      texts[rank].append(reinterpret_cast<const char*>(all.data()) + rank * piece.size(), piece.size());
    }
  }
  for (size_t rank = 0; rank < texts.size(); ++rank) texts[rank].resize(sizes[rank]);
  return texts;
}

std::vector<std::string> all_gather_texts(Communicator& communicator, std::string_view mine) {
  return gather_texts([&](auto bytes) { return communicator.all_gather_bytes(bytes); }, mine);
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
