#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/progress_bar.h"
#include "core/base/thread_team.h"
#include "core/base/wrapped_text.h"
#include "core/data/token_shard.h"
#include "core/io/checkpoint_store.h"
#include "core/io/files.h"
#include "tools/config/data_paths.h"
#include "tools/text/chat/chat_template.h"
#include "tools/text/document_reader.h"
#include "tools/text/tokenizer/tokenizer.h"
#include "tools/text/verbs.h"

namespace mantissa {
namespace {

struct TokenizeRequest {
  std::vector<std::string> inputs;  // files, patterns and folders
  std::string tokenizer;
  std::string output;          // a folder
  std::string field = "text";  // of a line of JSON; the column of Parquet
  std::string chat;  // lines are conversations: a template's name, or "auto" for the tokenizer's folder; empty: texts
  std::string end_of_text;  // the token after each document; empty: the tokenizer's
  int64_t shard_tokens = 100'000'000;
  int64_t most_bad_lines = 0;  // that are skipped
  bool special_tokens_as_text = false;
};

// The token that follows each document.
int32_t end_of_text(const Tokenizer& tokenizer, const TokenizeRequest& request) {
  if (!request.end_of_text.empty()) {
    const auto id = tokenizer.id_of(request.end_of_text);
    require<ConfigError>(id.has_value(), "--end-of-text: the tokenizer has no token '{}'", request.end_of_text);
    return *id;
  }
  for (const auto& id : {tokenizer.eos(), tokenizer.id_of("<|endoftext|>"), tokenizer.id_of("</s>")}) {
    if (id) return *id;
  }
  throw ConfigError(request.tokenizer + ": does not say which token ends a text; name one with --end-of-text");
}

std::optional<ChatTemplate> template_of(const TokenizeRequest& request) {
  if (request.chat.empty()) return std::nullopt;
  if (request.chat != "auto") return chat_template(request.chat);
  const std::filesystem::path path = request.tokenizer;
  return find_chat_template((is_folder(path) ? path : path.parent_path()).string(), "--chat");
}

// A conversation: the assistant's text counts as targets, with the token that ends its turn.
void encode_chat(const Tokenizer& tokenizer, const ChatTemplate& format, const nlohmann::json& messages,
                 std::vector<int32_t>& ids, std::vector<uint8_t>& loss_mask) {
  const std::vector<ChatMessage> given = chat_messages(JsonNode(messages, "messages"));
  for (size_t i = 0; i < given.size(); ++i) {
    require<DataError>(!given[i].content.empty(), "messages[{}]: the content is empty", i);
  }
  for (const ChatPiece& piece : format.render(given)) {
    tokenizer.encode(piece.text, ids, {.has_marks = true});
    loss_mask.resize(ids.size(), piece.part == ChatPart::kAssistant ? 1 : 0);
  }
  require<DataError>(std::ranges::count(loss_mask, 1) > 0, "messages: none is the assistant's, so nothing is learnt");
}

template <typename Token>
void write_as(std::span<const int32_t> ids, std::ofstream& file) {
  const std::vector<Token> tokens(ids.begin(), ids.end());
  file.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
}

// Writes token files into a folder that appears when all of them are complete: files of llm.c, or token shards
// (core/data/token_shard.h), with the beginnings of documents and a mask of targets.
class TokenShards {
 public:
  enum class Form : uint8_t { kLlmc, kOwn };
  struct Options {
    std::string folder;
    Form form = Form::kLlmc;
    std::string tokenizer{};  // named in files of our own
    std::string chat_template{};
    int64_t vocab = 0;         // up to 65,536 ids are written as u16, more as u32
    int64_t shard_tokens = 0;  // in each file but the last. llm.c: a document may continue in the next file; our own: a
                               // file ends after the document that reaches this number
  };
  // ConfigError as PendingOutput(). The other functions throw DataError if they cannot write.
  explicit TokenShards(Options options)
      : options_(std::move(options)), output_(PendingOutput::Kind::kFolder, options_.folder) {}

  // A document. `loss_mask`: of files of our own, see TokenShardWriter.
  void add(std::span<const int32_t> ids, std::span<const uint8_t> loss_mask) {
    if (options_.form == Form::kOwn) {
      if (!shard_) shard_.emplace(options_.vocab, options_.tokenizer, options_.chat_template);
      shard_->add(ids, loss_mask);
      if (shard_->tokens() >= options_.shard_tokens) write_shard();
      return;
    }
    while (!ids.empty()) {
      if (!file_.is_open()) {
        file_.open(fmt::format("{}/tokens_{:06}.bin", output_.partial(), files_++), std::ios::binary);
        const Header header{};
        file_.write(reinterpret_cast<const char*>(header.data()), sizeof header);
      }
      const auto part =
          ids.first(static_cast<size_t>(std::min(static_cast<int64_t>(ids.size()), options_.shard_tokens - in_file_)));
      if (options_.vocab <= 1 << 16) {
        write_as<uint16_t>(part, file_);
      } else {
        write_as<uint32_t>(part, file_);
      }
      in_file_ += static_cast<int64_t>(part.size());
      ids = ids.subspan(part.size());
      if (in_file_ == options_.shard_tokens) close_file();
    }
  }

  void finish() {
    if (shard_) write_shard();
    if (file_.is_open()) close_file();
    output_.finish();
  }
  int64_t files() const { return files_; }

 private:
  using Header = std::array<int32_t, 256>;

  void close_file() {
    // Source of the layout: llm.c, dev/data/data_common.py.
    Header header{};
    header[0] = options_.vocab <= 1 << 16 ? 20240520 : 20240801;
    header[1] = options_.vocab <= 1 << 16 ? 1 : 7;
    header[2] = static_cast<int32_t>(in_file_);
    file_.seekp(0);
    file_.write(reinterpret_cast<const char*>(header.data()), sizeof header);
    file_.close();
    require<DataError>(file_.good(), "{}: cannot write file {}: {}", output_.partial(), files_ - 1,
                       std::generic_category().message(errno));
    in_file_ = 0;
  }

  void write_shard() {
    try {
      CheckpointFileWriter file(output_.partial(), fmt::format("tokens_{:06}.safetensors", files_++));
      shard_->write(file);
      file.close();
    } catch (const CheckpointError& error) {
      throw DataError(error.what());
    }
    shard_.reset();
  }

  const Options options_;
  PendingOutput output_;
  std::ofstream file_;
  std::optional<TokenShardWriter> shard_;  // that is being filled
  int64_t files_ = 0, in_file_ = 0;
};

struct Document {
  std::vector<int32_t> ids;
  std::vector<uint8_t> loss_mask{};  // of a conversation
  std::string complaint;             // why the line is none
};

class Run {
 public:
  Run(const TokenizeRequest& request, const std::vector<std::string>& files)
      : request_(request),
        tokenizer_(open_tokenizer(request.tokenizer)),
        chat_(template_of(request)),
        end_(chat_ ? -1 : end_of_text(*tokenizer_, request)),
        shards_({.folder = request.output,
                 .form = chat_ ? TokenShards::Form::kOwn : TokenShards::Form::kLlmc,
                 .tokenizer = std::filesystem::path(request.tokenizer).filename().string(),
                 .chat_template = chat_ ? chat_->jinja() : "",
                 .vocab = tokenizer_->vocab_size(),
                 .shard_tokens = request.shard_tokens}),
        progress_(std::in_place, "tokenize: MB", megabytes(size_of(files))) {}

  void add_file(const std::string& path) {
    const std::string doubt = read_documents(path, name_, [&](std::span<const RawDocument> batch, size_t read_bytes) {
      require<DataError>(!chat_ || batch.empty() || batch[0].line > 0,
                         "{}: conversations are lines of JSON with 'messages', in *.jsonl, *.ndjson or *.json files",
                         path);
      add(path, batch);
      progress_->reach(megabytes(read_bytes_ + read_bytes));
    });
    if (!doubt.empty() && doubtful_files_++ == 0) first_doubt_ = fmt::format("{}: {}", path, doubt);
    read_bytes_ += size_of({path});
    ++files_;
  }

  void finish(double seconds) {
    require<DataError>(documents_ > 0, "the {} files hold no document: {} are empty, {} lines are not valid", files_,
                       empty_, bad_lines_);
    shards_.finish();
    progress_.reset();
    log_info("{} tokens of {} documents, {:.1f} MB, in {:.1f} s: {} files in {}", tokens_, documents_,
             static_cast<double>(bytes_) / 1e6, seconds, shards_.files(), request_.output);
    if (chat_) {
      log_info("{} tokens are the assistant's, and count as targets; the longest conversation has {} tokens", targets_,
               longest_);
    }
    if (empty_ > 0) log_info("{} empty documents were left out", empty_);
    if (bad_lines_ > 0) log_warn("{} lines were skipped", bad_lines_);
    if (doubtful_files_ > 0) {
      log_warn("{}; the whole file is one text ({} such); name files of JSON lines *.jsonl, --field names the key",
               first_doubt_, counted(doubtful_files_, "file"));
    }
  }

 private:
  static int64_t megabytes(uint64_t bytes) { return static_cast<int64_t>(bytes / 1'000'000); }
  static uint64_t size_of(const std::vector<std::string>& files) {
    uint64_t bytes = 0;
    std::error_code error;  // then reading it reports the error
    for (const std::string& file : files) {
      if (const uint64_t size = std::filesystem::file_size(file, error); !error) bytes += size;
    }
    return bytes;
  }

  Document encode(const RawDocument& raw) const {
    Document document;
    std::string_view text = raw.text;
    nlohmann::json json;
    if (raw.line > 0) {
      try {
        json = JsonNode::parse(text);
      } catch (const nlohmann::json::exception&) {
        document.complaint = "not valid JSON";
        return document;
      }
      const auto field = json.is_object() ? json.find(name_) : json.end();
      if (!json.is_object() || field == json.end() || !(chat_ ? field->is_array() : field->is_string())) {
        document.complaint = fmt::format("expected an object with the {} '{}'", chat_ ? "array" : "string", name_);
        return document;
      }
      if (chat_) {
        try {
          encode_chat(*tokenizer_, *chat_, *field, document.ids, document.loss_mask);
        } catch (const DataError& error) {
          document.complaint = error.what();
        }
        return document;
      }
      text = field->get_ref<const std::string&>();
    }
    tokenizer_->encode(text, document.ids, {.special_tokens_as_text = request_.special_tokens_as_text});
    return document;
  }

  void add(const std::string& path, std::span<const RawDocument> batch) {
    std::vector<Document> documents(batch.size());
    if (batch.size() == 1) {
      documents[0] = encode(batch[0]);  // by all threads
    } else {
      parallel_for(static_cast<int64_t>(batch.size()),
                   [&](int64_t i) { documents[static_cast<size_t>(i)] = encode(batch[static_cast<size_t>(i)]); });
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      Document& document = documents[i];
      if (!document.complaint.empty()) {
        complain(fmt::format("{}:{}: {}: {}", path, batch[i].line, document.complaint,
                             legible(batch[i].text.substr(0, 60))));
        continue;
      }
      if (document.ids.empty()) {
        ++empty_;
        continue;
      }
      if (!chat_) document.ids.push_back(end_);
      shards_.add(document.ids, document.loss_mask);
      targets_ += std::ranges::count(document.loss_mask, 1);
      longest_ = std::max(longest_, std::ssize(document.ids));
      ++documents_;
      tokens_ += static_cast<int64_t>(document.ids.size());
      bytes_ += static_cast<int64_t>(batch[i].text.size());
    }
  }

  void complain(const std::string& message) {
    constexpr int64_t kShown = 10;
    ++bad_lines_;
    require<DataError>(bad_lines_ <= request_.most_bad_lines,
                       "{}\nmore than {} lines are bad; --bad-lines N skips up to N of them", message,
                       request_.most_bad_lines);
    if (bad_lines_ <= kShown) log_warn("{}", message);
  }

  const TokenizeRequest& request_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const std::optional<ChatTemplate> chat_;
  const int32_t end_;
  const std::string name_ = chat_ ? "messages" : request_.field;  // of the key or column
  TokenShards shards_;
  std::optional<ProgressBar> progress_;
  uint64_t read_bytes_ = 0;  // of the files before this one
  int64_t files_ = 0, documents_ = 0, empty_ = 0, bad_lines_ = 0, tokens_ = 0, bytes_ = 0;
  int64_t targets_ = 0, longest_ = 0;  // of conversations
  int64_t doubtful_files_ = 0;         // taken as a text each
  std::string first_doubt_;
};

void tokenize(const TokenizeRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> files = text_files(request.inputs);
  Run run(request, files);
  for (const std::string& file : files) run.add_file(file);
  run.finish(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

void add_tokenize(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* command = app.add_subcommand("tokenize", "Turn text, JSONL and Parquet files into token files to train on");
  const auto request = std::make_shared<TokenizeRequest>();
  command
      ->add_option("inputs", request->inputs,
                   "files, patterns, folders; lines of *.jsonl, *.ndjson and JSON lines in *.json, and rows of "
                   "*.parquet, are texts; .gz, .zst, .xz and .bz2 are unpacked")
      ->required();
  command->add_option("--tokenizer", request->tokenizer, kTokenizerHelp)->required();
  command->add_option("--out", request->output, "folder for the token files, which must not be there yet")->required();
  command->add_option("--field", request->field, "of a line of JSON; the column of Parquet")->capture_default_str();
  std::vector<std::string> templates = chat_template_names();
  templates.emplace_back("auto");
  command
      ->add_option("--chat", request->chat,
                   "lines are conversations, {\"messages\": [...]}, in this template; auto: the tokenizer's")
      ->check(CLI::IsMember(templates));
  command->add_option("--end-of-text", request->end_of_text, "the token after each text; otherwise the tokenizer's");
  VerbOptions(*command).count("--shard-tokens", request->shard_tokens, 1, 2'000'000'000, "tokens in a file");
  VerbOptions(*command).count("--bad-lines", request->most_bad_lines, 0, int64_t{1} << 40,
                              "skip up to this many lines that are not valid");
  command->add_flag("--special-tokens-as-text", request->special_tokens_as_text,
                    "tokenize special tokens in a text as plain text");
  verbs.push_back({command, "tokenize my/text --tokenizer my/tokenizer --out my/tokens",
                   [request] { return run_reported([&] { tokenize(*request); }); }});
}

}  // namespace mantissa
