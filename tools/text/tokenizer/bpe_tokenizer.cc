#include "tools/text/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <utility>

#include "core/base/thread_team.h"
#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 17;  // of a large text, encoded by one thread at a time

// Appends what f(i, ids) appends, in order.
template <typename F>
void append_in_parallel(size_t count, std::vector<int32_t>& ids, const F& f) {
  if (count == 1) return f(0, ids);
  std::vector<std::vector<int32_t>> parts(count);
  parallel_for(static_cast<int64_t>(count),
               [&](int64_t i) { f(static_cast<size_t>(i), parts[static_cast<size_t>(i)]); });
  for (const auto& part : parts) ids.insert(ids.end(), part.begin(), part.end());
}

}  // namespace

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

BpeTokenizer::BpeTokenizer(BpeTokenizerParts parts)
    : normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      bpe_(std::move(parts.bpe)),
      ids_before_(std::move(parts.ids_before)),
      ids_after_(std::move(parts.ids_after)) {
  texts_ = std::move(parts.texts);
  kind_ = std::move(parts.kind);
  added_tokens_ = std::move(parts.added_tokens);
  bos_ = parts.bos;
  eos_ = parts.eos;
  std::vector<AddedToken> raw, normalized;
  for (AddedToken token : added_tokens_) {
    std::string storage;
    if (token.normalized) token.content = std::string(normalizer_.apply(token.content, storage));
    if (!token.content.empty()) (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  tokens_in_text_ = AddedTokenMatcher(std::move(raw));
  tokens_in_normalized_text_ = AddedTokenMatcher(std::move(normalized));
  if (pre_tokenizer_.allows_cut_before_space()) border_ = std::move(parts.space);
}

std::optional<int32_t> BpeTokenizer::id_of(std::string_view content) const {
  const auto token = std::find_if(added_tokens_.begin(), added_tokens_.end(),
                                  [content](const AddedToken& added) { return added.content == content; });
  return token != added_tokens_.end() ? token->id : bpe_->find(content);
}

void BpeTokenizer::encode_piece(const Piece& piece, std::vector<int32_t>& ids) const {
  struct Words final : PieceSink {
    Words(const Bpe& model, std::vector<int32_t>& out) : bpe(model), scratch(model.take_scratch()), ids(out) {}
    void take(const Piece& word) override { bpe.encode(word.text, *scratch, ids); }
    const Bpe& bpe;
    const std::shared_ptr<Bpe::Scratch> scratch;
    std::vector<int32_t>& ids;
  };
  const bool is_cut = !border_.empty() && piece.text.size() >= 2 * kChunkBytes;
  const std::vector<Piece> chunks = is_cut ? chunks_of(piece, border_) : std::vector{piece};
  append_in_parallel(chunks.size(), ids, [&](size_t i, std::vector<int32_t>& chunk_ids) {
    Words words(*bpe_, chunk_ids);
    pre_tokenizer_.cut(chunks[i], words);
  });
}

void BpeTokenizer::encode_part(const Part& part, bool tokens_as_text, std::vector<int32_t>& ids) const {
  if (part.token) return ids.push_back(*part.token);
  std::string storage;
  const std::string_view text = normalizer_.apply(part.piece.text, storage);
  tokens_in_normalized_text_.cut(
      text, tokens_as_text,
      [&](std::string_view piece) {
        encode_piece({piece, part.piece.is_start && piece.data() == text.data()}, ids);
      },
      [&ids](int32_t id) { ids.push_back(id); });
}

void BpeTokenizer::encode(std::string_view text, std::vector<int32_t>& ids, EncodeOptions options) const {
  std::string valid;
  text = as_utf8(text, valid);
  std::vector<Part> parts;
  tokens_in_text_.cut(
      text, options.special_tokens_as_text,
      [&](std::string_view part) {
        parts.push_back({{part, part.data() == text.data()}, {}});
      },
      [&](int32_t id) {
        parts.push_back({{}, id});
      });

  if (options.add_special_tokens) ids.insert(ids.end(), ids_before_.begin(), ids_before_.end());
  // Small parts go to the threads in groups. A large one is cut for them when it has been normalized.
  for (size_t begin = 0; begin < parts.size();) {
    std::vector<size_t> groups = {begin};
    size_t end = begin, bytes = 0;
    for (; end < parts.size() && parts[end].piece.text.size() < 2 * kChunkBytes; ++end) {
      bytes += parts[end].piece.text.size();
      if (bytes < kChunkBytes) continue;
      groups.push_back(end + 1);
      bytes = 0;
    }
    if (groups.back() != end) groups.push_back(end);
    append_in_parallel(groups.size() - 1, ids, [&](size_t group, std::vector<int32_t>& group_ids) {
      for (size_t i = groups[group]; i < groups[group + 1]; ++i) {
        encode_part(parts[i], options.special_tokens_as_text, group_ids);
      }
    });
    if (end < parts.size()) encode_part(parts[end++], options.special_tokens_as_text, ids);
    begin = end;
  }
  if (options.add_special_tokens) ids.insert(ids.end(), ids_after_.begin(), ids_after_.end());
}

}  // namespace mantissa
