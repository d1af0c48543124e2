#include "tools/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "core/base/check.h"
#include "core/base/progress_bar.h"
#include "core/base/thread_team.h"
#include "core/io/files.h"
#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 17;  // of a large text, encoded by one thread at a time

// Appends what f(i, ids) appends, in order.
template <typename F>
void append_in_parallel(size_t count, std::vector<int32_t>& ids, const F& f) {
  if (count == 1) return f(0, ids);
  const size_t round = 16 * static_cast<size_t>(threads());
  ProgressBar progress("encode: chunks of text", static_cast<int64_t>(count));
  for (size_t begin = 0; begin < count; begin += round) {
    std::vector<std::vector<int32_t>> parts(std::min(round, count - begin));
    parallel_for(std::ssize(parts),
                 [&](int64_t i) { f(begin + static_cast<size_t>(i), parts[static_cast<size_t>(i)]); });
    for (const auto& part : parts) ids.insert(ids.end(), part.begin(), part.end());
    progress.advance(std::ssize(parts));
  }
}

// llm.c's tokenizer file, which has the bytes of each token but no merges. Source of the layout: llm.c, train_gpt2.py,
// write_tokenizer(). Version 1 has no token that ends a text.
std::unique_ptr<Tokenizer> open_llmc_tokenizer(const std::string& path) {
  const MappedFile file = map_file<DataError>(path);
  std::string_view rest = file.text();
  constexpr int32_t kMagic = 20240328;
  std::array<int32_t, 256> header{};
  require<DataError>(rest.size() >= sizeof header,
                     "{}: no tokenizer of llm.c: expected a header of {} bytes, got {} bytes", path, sizeof header,
                     rest.size());
  std::memcpy(header.data(), rest.data(), sizeof header);
  rest.remove_prefix(sizeof header);
  require<DataError>(header[0] == kMagic && (header[1] == 1 || header[1] == 2),
                     "{}: no tokenizer of llm.c: expected magic {} and version 1 or 2, got {} and {}", path, kMagic,
                     header[0], header[1]);
  const int32_t count = header[2];
  const std::optional<int32_t> eos = header[1] == 2 ? std::optional(header[3]) : std::nullopt;
  TokenizerParts parts{.kind = "llm.c's, for decoding only", .texts = {}, .eos = eos, .path = path};
  for (int32_t id = 0; id < count; ++id) {
    const size_t length = rest.empty() ? 0 : static_cast<unsigned char>(rest[0]);
    require<DataError>(rest.size() > length, "{}: ends within token {} of {}; copy the file again", path, id, count);
    parts.texts.set(id, std::string(rest.substr(1, length)), id == eos);
    rest.remove_prefix(1 + length);
  }
  require<DataError>(count > 0 && rest.empty(), "{}: expected {} tokens as its header says, got {} more bytes", path,
                     count, rest.size());
  require<DataError>(!eos || (*eos >= 0 && *eos < count), "{}: the token that ends a text must be 0 to {}, got {}",
                     path, count - 1, header[3]);
  if (eos) parts.added_tokens.push_back({.content = std::string(parts.texts.text(*eos)), .id = *eos, .special = true});
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) begins_[static_cast<unsigned char>(token.content.front())] = true;
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view rest) const {
  // Among the tokens that share the first `length` bytes of the text, the shortest comes first.
  auto begin = tokens_.begin(), end = tokens_.end();
  const AddedToken* longest = nullptr;
  for (size_t length = 0; length < rest.size() && begin != end; ++length) {
    const auto byte_of = [length](const AddedToken& token) {
      return static_cast<unsigned char>(token.content[length]);
    };
    const auto wanted = static_cast<unsigned char>(rest[length]);
    begin = std::partition_point(begin, end, [&](const AddedToken& token) { return byte_of(token) < wanted; });
    end = std::partition_point(begin, end, [&](const AddedToken& token) { return byte_of(token) == wanted; });
    for (; begin != end && begin->content.size() == length + 1; ++begin) longest = &*begin;
  }
  return longest;
}

std::vector<TokenOrText> AddedTokenMatcher::cut(std::string_view whole, bool skips_special) const {
  std::vector<TokenOrText> parts;
  size_t done = 0;  // of `whole`
  for (size_t from = 0; !tokens_.empty() && from < whole.size();) {
    const bool may_begin = begins_[static_cast<unsigned char>(whole[from])];
    const AddedToken* const token = may_begin ? longest_at(whole.substr(from)) : nullptr;
    if (token == nullptr) {
      ++from;
      continue;
    }
    size_t begin = from, end = from + token->content.size();
    from = end;
    if (skips_special && token->special) continue;
    if (token->single_word && ((begin > 0 && is_word(last_char(whole.substr(0, begin)).code)) ||
                               (end < whole.size() && is_word(first_char(whole.substr(end)).code)))) {
      continue;
    }
    while (token->lstrip && begin > 0) {
      const TextChar before = last_char(whole.substr(0, begin));
      if (!is_space(before.code)) break;
      begin -= before.bytes;
    }
    while (token->rstrip && end < whole.size()) {
      const TextChar next = first_char(whole.substr(end));
      if (!is_space(next.code)) break;
      end += next.bytes;
    }
    // White space that it takes may belong to an earlier token. If nothing is left, tokenizers 0.23 drops the token.
    if (token->lstrip && end <= done) continue;
    if (done < begin) parts.push_back({.text = whole.substr(done, begin - done)});
    parts.push_back({.token = token->id});
    done = end;
  }
  if (done < whole.size()) parts.push_back({.text = whole.substr(done)});
  return parts;
}

void TokenTexts::set(int32_t id, std::string text, bool is_special) {
  const auto index = static_cast<size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  tokens_[index] = {std::move(text), is_special};
}

const TokenTexts::Token& TokenTexts::at(int32_t id) const {
  require<DataError>(id >= 0 && id < size(), "token {} is not in the tokenizer's vocabulary, whose ids are 0 to {}", id,
                     size() - 1);
  return tokens_[static_cast<size_t>(id)];
}

void TokenTexts::append(int32_t id, Place& place, std::string& out) const {
  std::string_view text = at(id).text;
  if (place.is_first && start_.drops_spaces) {
    std::remove_copy(text.begin(), text.end(), std::back_inserter(out), ' ');
    place.is_first = false;
    return;
  }
  place.is_first = false;
  for (; place.spaces_left > 0 && text.starts_with(' '); --place.spaces_left) text.remove_prefix(1);
  if (!text.empty()) place.spaces_left = 0;
  out += text;
}

std::vector<Piece> chunks_of(const Piece& piece, const std::string& border) {
  std::vector<Piece> chunks;
  std::string_view rest = piece.text;
  const auto take = [&](size_t size) {
    chunks.push_back({rest.substr(0, size), piece.is_start && chunks.empty()});
    rest.remove_prefix(size);
  };
  for (size_t from = kChunkBytes; from < rest.size();) {
    const size_t at = rest.find(border, from);
    if (at == std::string_view::npos) break;
    from = at + border.size();
    if (rest.substr(0, at).ends_with(border) || is_space(last_char(rest.substr(0, at)).code)) continue;
    take(at);
    from = kChunkBytes;
  }
  take(rest.size());
  return chunks;
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::move(parts)), is_cut_at_spaces_(allows_cut_before_space(parts_.pre_tokenizers)) {
  std::vector<AddedToken> raw, normal;
  for (AddedToken token : parts_.added_tokens) {
    std::string storage;
    if (token.normalized) token.content = std::string(normalized(parts_.normalizers, token.content, storage));
    if (!token.content.empty()) (token.normalized ? normal : raw).push_back(std::move(token));
  }
  tokens_in_text_ = AddedTokenMatcher(std::move(raw));
  tokens_in_normalized_text_ = AddedTokenMatcher(std::move(normal));
}

std::optional<int32_t> Tokenizer::id_of(std::string_view content) const {
  const auto token = std::ranges::find(parts_.added_tokens, content, &AddedToken::content);
  if (token != parts_.added_tokens.end()) return token->id;
  if (parts_.bpe) return parts_.bpe->find(content);
  for (int32_t id = 0; id < static_cast<int32_t>(vocab_size()); ++id) {
    if (texts().text(id) == content) return id;
  }
  return std::nullopt;
}

void Tokenizer::encode_piece(const Piece& piece, std::vector<int32_t>& ids) const {
  const bool is_cut = is_cut_at_spaces_ && piece.text.size() >= 2 * kChunkBytes;
  const std::vector<Piece> chunks = is_cut ? chunks_of(piece, parts_.space) : std::vector{piece};
  append_in_parallel(chunks.size(), ids, [&](size_t i, std::vector<int32_t>& chunk_ids) {
    const std::shared_ptr<Bpe::Scratch> scratch = parts_.bpe->take_scratch();
    cut(parts_.pre_tokenizers, chunks[i],
        [&](const Piece& word) { parts_.bpe->encode(word.text, *scratch, chunk_ids); });
  });
}

void Tokenizer::encode_part(const TokenOrText& part, bool is_start, bool tokens_as_text,
                            std::vector<int32_t>& ids) const {
  if (part.token) return ids.push_back(*part.token);
  std::string storage;
  const std::string_view text = normalized(parts_.normalizers, part.text, storage);
  for (const TokenOrText& inner : tokens_in_normalized_text_.cut(text, tokens_as_text)) {
    if (inner.token) {
      ids.push_back(*inner.token);
    } else {
      encode_piece({inner.text, is_start && inner.text.data() == text.data()}, ids);
    }
  }
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& ids, EncodeOptions options) const {
  require<DataError>(parts_.bpe != nullptr,
                     "{}: llm.c's tokenizer file has no merges and cannot encode text; name a tokenizer.json or a "
                     ".tiktoken file",
                     parts_.path);
  require<DataError>(!(options.has_marks && parts_.splits_special_tokens),
                     "{}: its tokenizer_config.json has split_special_tokens: true, which makes the marks of turns "
                     "plain text; set it to false for conversations",
                     parts_.path);
  options.special_tokens_as_text |= parts_.splits_special_tokens;
  std::string valid;
  text = as_utf8(text, valid);
  const std::vector<TokenOrText> parts = tokens_in_text_.cut(text, options.special_tokens_as_text);
  const auto encode_one = [&](size_t i, std::vector<int32_t>& out) {
    encode_part(parts[i], parts[i].text.data() == text.data(), options.special_tokens_as_text, out);
  };
  if (options.add_special_tokens) ids.insert(ids.end(), parts_.ids_before.begin(), parts_.ids_before.end());
  // Small parts go to the threads in groups. A large one is cut for them when it has been normalized.
  for (size_t begin = 0; begin < parts.size();) {
    std::vector<size_t> groups = {begin};
    size_t end = begin, bytes = 0;
    for (; end < parts.size() && parts[end].text.size() < 2 * kChunkBytes; ++end) {
      bytes += parts[end].text.size();
      if (bytes < kChunkBytes) continue;
      groups.push_back(end + 1);
      bytes = 0;
    }
    if (groups.back() != end) groups.push_back(end);
    append_in_parallel(groups.size() - 1, ids, [&](size_t group, std::vector<int32_t>& group_ids) {
      for (size_t i = groups[group]; i < groups[group + 1]; ++i) encode_one(i, group_ids);
    });
    if (end < parts.size()) encode_one(end++, ids);
    begin = end;
  }
  if (options.add_special_tokens) ids.insert(ids.end(), parts_.ids_after.begin(), parts_.ids_after.end());
}

std::string Tokenizer::decode(std::span<const int32_t> ids, DecodeOptions options) const {
  std::string text;
  TokenTexts::Place place = texts().begin();
  for (const int32_t id : ids) {
    if (!options.skip_special_tokens || !texts().is_special(id)) texts().append(id, place, text);
  }
  return text;
}

std::string StreamingDecoder::add(int32_t id) {
  texts_.append(id, place_, held_);
  const size_t whole = held_.size() - incomplete_tail(held_);
  std::string text = held_.substr(0, whole);
  held_.erase(0, whole);
  return text;
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  if (is_folder(path)) {
    const std::string file = path + (path.ends_with('/') ? "" : "/") + "tokenizer.json";
    require<DataError>(
        file_exists(file),
        "{}: the folder has no tokenizer.json{}; a folder needs one, other tokenizers are named as files: "
        "*.tiktoken, llm.c's *.bin",
        path, file_exists(path + "/tokenizer.model") ? " but a tokenizer.model" : "");
    return open_tokenizer_json(file);
  }
  const std::string suffix = fs::path(path).extension().string();
  if (suffix == ".json") return open_tokenizer_json(path);
  if (suffix == ".tiktoken") return open_tiktoken(path);
  if (suffix == ".bin") return open_llmc_tokenizer(path);
  throw DataError(
      "{}: {}; a tokenizer is a folder with a tokenizer.json, or a file *.json, *.tiktoken or *.bin "
      "(llm.c's)",
      path, file_exists(path) ? "the kind of the file is not known" : "does not exist");
}

}  // namespace mantissa
