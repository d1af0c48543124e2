#include "core/data/token_shard.h"

#include <charconv>
#include <cstring>

#include "core/io/safetensors.h"

namespace mantissa {
namespace {

constexpr const char* kVocabKey = "vocabulary";
constexpr const char* kTokenizerKey = "tokenizer";

struct TokenType {
  const char* name;
  int bytes;
};
constexpr TokenType kTokenTypes[] = {{"U8", 1}, {"U16", 2}, {"I32", 4}};

const TokenType& narrowest(int64_t vocab) { return kTokenTypes[vocab <= 1 << 8 ? 0 : vocab <= 1 << 16 ? 1 : 2]; }

template <typename T>
void append_as(std::vector<std::byte>& bytes, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    const T narrow = static_cast<T>(token);
    const auto* const first = reinterpret_cast<const std::byte*>(&narrow);
    bytes.insert(bytes.end(), first, first + sizeof(T));
  }
}

int64_t vocab_of(const SafetensorsReader& file) {
  const auto found = file.metadata().find(kVocabKey);
  const std::string text = found == file.metadata().end() ? "" : found->second;
  int64_t vocab = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), vocab);
  require<DataError>(error == std::errc() && end == text.data() + text.size() && vocab > 0,
                     "{}: no token shard: expected the metadata '{}' with a number > 0, got '{}'", file.path(),
                     kVocabKey, text);
  return vocab;
}

// The tensor of one dimension with this name.
const SafetensorsEntry& list_of(const SafetensorsReader& file, const char* name, std::string_view dtype) {
  const SafetensorsEntry* const entry = file.find(name);
  require<DataError>(entry != nullptr, "{}: no token shard: it has no tensor '{}'", file.path(), name);
  require<DataError>(entry->shape.size() == 1 && (dtype.empty() || entry->dtype == dtype),
                     "{}: tensor '{}' must be a list of {}, got {} with {} dimensions", file.path(), name,
                     dtype.empty() ? "tokens" : dtype, entry->dtype, entry->shape.size());
  return *entry;
}

std::vector<int64_t> starts_of(const SafetensorsReader& file, int64_t tokens) {
  const SafetensorsEntry& entry = list_of(file, "documents", "I64");
  std::vector<int64_t> starts(static_cast<size_t>(entry.shape[0]));
  if (!starts.empty()) std::memcpy(starts.data(), file.bytes(entry).data(), entry.size_bytes());
  require<DataError>(!starts.empty() && starts.front() == 0,
                     "{}: tensor 'documents' must begin with 0, the first document's first token", file.path());
  const auto wrong = std::ranges::adjacent_find(starts, std::greater_equal<>());
  require<DataError>(wrong == starts.end(), "{}: tensor 'documents' must ascend, got {} and then {} at {}", file.path(),
                     wrong == starts.end() ? 0 : *wrong, wrong == starts.end() ? 0 : *(wrong + 1),
                     wrong - starts.begin());
  require<DataError>(starts.back() < tokens, "{}: the last document begins at token {} of {}", file.path(),
                     starts.back(), tokens);
  return starts;
}

}  // namespace

TokenShardWriter::TokenShardWriter(int64_t vocab, std::string tokenizer, std::string chat_template)
    : vocab_(vocab),
      tokenizer_(std::move(tokenizer)),
      chat_template_(std::move(chat_template)),
      token_bytes_(narrowest(vocab).bytes) {
  MANTISSA_CHECK(vocab > 0 && vocab <= INT32_MAX, "[token_shard] expected a vocabulary in [1, 2^31), got {}", vocab);
}

void TokenShardWriter::add(std::span<const int32_t> document, std::span<const uint8_t> loss_mask) {
  MANTISSA_CHECK(!document.empty() && (loss_mask.empty() || loss_mask.size() == document.size()),
                 "[token_shard] expected at least one token and a mask of its length, got {} and {}", document.size(),
                 loss_mask.size());
  const auto [least, largest] = std::ranges::minmax(document);
  MANTISSA_CHECK(least >= 0 && largest < vocab_, "[token_shard] tokens must be in [0, {}), got {} and {}", vocab_,
                 least, largest);
  const auto before = static_cast<size_t>(tokens());
  starts_.push_back(tokens());
  if (token_bytes_ == 1) append_as<uint8_t>(bytes_, document);
  if (token_bytes_ == 2) append_as<uint16_t>(bytes_, document);
  if (token_bytes_ == 4) append_as<int32_t>(bytes_, document);
  if (loss_mask.empty() && loss_mask_.empty()) return;
  loss_mask_.resize(before, 1);
  for (const uint8_t value : loss_mask) loss_mask_.push_back(value != 0);
  loss_mask_.resize(static_cast<size_t>(tokens()), 1);
}

void TokenShardWriter::write(ByteSink& sink) const {
  MANTISSA_CHECK(!starts_.empty(), "[token_shard] there is no document to write");
  std::vector<SafetensorsEntry> parts = {
      {.name = "documents", .dtype = "I64", .shape = {documents()}},
      {.name = "tokens", .dtype = narrowest(vocab_).name, .shape = {tokens()}},
  };
  if (!loss_mask_.empty()) parts.push_back({.name = "loss_mask", .dtype = "U8", .shape = {tokens()}});
  SafetensorsMetadata metadata = {{kVocabKey, fmt::format("{}", vocab_)}, {kTokenizerKey, tokenizer_}};
  if (!chat_template_.empty()) metadata[kChatTemplateKey] = chat_template_;
  SafetensorsWriter writer(sink, std::move(parts), std::move(metadata));
  writer.append("documents", std::as_bytes(std::span(starts_)));
  writer.append("tokens", bytes_);
  if (!loss_mask_.empty()) writer.append("loss_mask", std::as_bytes(std::span(loss_mask_)));
  writer.finish();
}

bool starts_like_shard(const InputFile& file) {
  constexpr size_t kLengthBytes = sizeof(uint64_t);
  if (file.size() < kLengthBytes + 2) return false;
  std::byte start[kLengthBytes + 2];
  file.read(0, start);
  uint64_t length = 0;
  std::memcpy(&length, start, kLengthBytes);
  return length <= file.size() - kLengthBytes && start[kLengthBytes] == std::byte{'{'} &&
         start[kLengthBytes + 1] == std::byte{'"'};
}

TokenFile read_token_shard(InputFile input) try {
  const SafetensorsReader file(input.path());
  const SafetensorsEntry& tokens = list_of(file, "tokens", "");
  const auto* const type = std::ranges::find(kTokenTypes, tokens.dtype, &TokenType::name);
  require<DataError>(type != std::end(kTokenTypes), "{}: tensor 'tokens' must be U8, U16 or I32, got {}", file.path(),
                     tokens.dtype);
  const uint64_t data_offset = input.size() - file.entries().back().end;  // tensors fill the file to its end
  TokenFile shard{.file = std::move(input),
                  .offset_bytes = data_offset + tokens.begin,
                  .token_bytes = type->bytes,
                  .count = tokens.shape[0],
                  .limit = type->bytes == 4 ? int64_t{INT32_MAX} + 1 : INT64_MAX,
                  .is_described = true,
                  .tokenizer_vocab = vocab_of(file)};
  shard.documents = starts_of(file, shard.count);
  if (const auto name = file.metadata().find(kTokenizerKey); name != file.metadata().end()) {
    shard.tokenizer = name->second;
  }
  if (file.find("loss_mask") != nullptr) {
    const SafetensorsEntry& mask = list_of(file, "loss_mask", "U8");
    require<DataError>(mask.shape == tokens.shape, "{}: tensor 'loss_mask' has {} elements for {} tokens", file.path(),
                       mask.shape[0], shard.count);
    shard.mask_offset = data_offset + mask.begin;
  }
  return shard;
} catch (const CheckpointError& error) {
  throw DataError(error.what());
}

}  // namespace mantissa
