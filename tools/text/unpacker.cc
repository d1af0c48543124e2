#include "tools/text/unpacker.h"

#include <bzlib.h>
#include <lzma.h>
#include <strings.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <memory>
#include <new>

#include "core/base/check.h"
#include "core/data/data_kind.h"

namespace mantissa {
namespace {

using In = Unpacker::In;
using Out = Unpacker::Out;

// zlib, bzip2 and liblzma have streams of the same form. `starved`: the code without enough input.
template <typename Stream, typename Begin, typename Call, typename End>
Unpacker::Library library_of(Stream blank, Begin begin, Call call, End end, int at_end, int starved) {
  const auto start = [=] {
    std::shared_ptr<Stream> stream(new Stream(blank), [end](Stream* used) {
      end(used);
      delete used;
    });
    if (begin(stream.get()) != 0) throw std::bad_alloc();
    return stream;
  };
  return [=, stream = start(), has_ended = false](In in, Out out) mutable {
    // Zeros may fill up the file behind a stream.
    const auto filled = std::ranges::find_if(in, [](std::byte byte) { return byte != std::byte{}; }) - in.begin();
    if (has_ended && filled > 0) return Unpacker::Step{.taken = static_cast<size_t>(filled), .is_end = true};
    constexpr size_t kMost = size_t{1} << 30;  // they count in 32 bits
    in = in.first(std::min(in.size(), kMost));
    out = out.first(std::min(out.size(), kMost));
    // They do not write to their input.
    stream->next_in = reinterpret_cast<decltype(stream->next_in)>(const_cast<std::byte*>(in.data()));
    stream->next_out = reinterpret_cast<decltype(stream->next_out)>(out.data());
    stream->avail_in = static_cast<decltype(stream->avail_in)>(in.size());
    stream->avail_out = static_cast<decltype(stream->avail_out)>(out.size());
    const int code = static_cast<int>(call(stream.get()));
    const Unpacker::Step step{in.size() - stream->avail_in, out.size() - stream->avail_out, code == at_end,
                              code == 0 || code == at_end || code == starved};
    has_ended = step.is_end;
    if (step.is_end) stream = start();
    return step;
  };
}

Unpacker::Library bzip2() {
  const auto begin = [](bz_stream* stream) { return BZ2_bzDecompressInit(stream, 0, 0); };
  return library_of(bz_stream{}, begin, BZ2_bzDecompress, BZ2_bzDecompressEnd, BZ_STREAM_END, BZ_OK);
}

Unpacker::Library xz() {
  const auto begin = [](lzma_stream* stream) { return lzma_stream_decoder(stream, UINT64_MAX, 0); };
  const auto call = [](lzma_stream* stream) {
    const lzma_ret code = lzma_code(stream, LZMA_RUN);
    if (code == LZMA_MEM_ERROR) throw std::bad_alloc();  // dictionaries have up to 4 GiB
    return code;
  };
  const lzma_stream blank = LZMA_STREAM_INIT;
  return library_of(blank, begin, call, lzma_end, LZMA_STREAM_END, LZMA_BUF_ERROR);
}

struct FileCodec {
  std::string_view suffix, magic;
  Unpacker::Library (*library)();
};
constexpr FileCodec kCodecs[] = {{".gz", "\x1f\x8b\x08", Unpacker::gzip},
                                 {".zst", "\x28\xb5\x2f\xfd", Unpacker::zstd},
                                 {".xz", "\xfd\x37zXZ", xz},
                                 {".bz2", "", bzip2}};  // texts may start like bzip2 files

// By the first bytes, else by the name; null: it is not compressed.
const FileCodec* codec_of(std::string_view path, std::string_view start) {
  const auto is_magic = [start](std::string_view magic) { return !magic.empty() && start.starts_with(magic); };
  const auto is_named = [path](std::string_view suffix) { return has_suffix(path, {suffix}); };
  const auto* found = std::ranges::find_if(kCodecs, is_magic, &FileCodec::magic);
  if (found == std::end(kCodecs)) found = std::ranges::find_if(kCodecs, is_named, &FileCodec::suffix);
  return found == std::end(kCodecs) ? nullptr : found;
}

// For bytes that are not compressed.
Unpacker::Step copy_step(In in, Out out) {
  const size_t size = std::min(in.size(), out.size());
  std::copy_n(reinterpret_cast<const char*>(in.data()), size, out.data());
  return {.taken = size, .made = size, .is_end = true};
}

}  // namespace

Unpacker::Library Unpacker::gzip() {
  constexpr int kDetectHeader = 32;
  const auto begin = [](z_stream* stream) { return inflateInit2(stream, MAX_WBITS + kDetectHeader); };
  const auto call = [](z_stream* stream) { return inflate(stream, Z_NO_FLUSH); };
  return library_of(z_stream{}, begin, call, inflateEnd, Z_STREAM_END, Z_BUF_ERROR);
}

Unpacker::Library Unpacker::zstd() {
  const std::shared_ptr<ZSTD_DStream> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  if (stream == nullptr) throw std::bad_alloc();
  ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  return [stream](In in, Out out) {
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const size_t rest = ZSTD_decompressStream(stream.get(), &to, &from);
    if (ZSTD_getErrorCode(rest) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    return Step{.taken = from.pos, .made = to.pos, .is_end = rest == 0, .is_sound = ZSTD_isError(rest) == 0};
  };
}

Unpacker Unpacker::open(const MappedFile& file) {
  const FileCodec* const codec = codec_of(file.path(), file.text());
  return {file.path(), file.bytes(), codec != nullptr ? codec->library() : copy_step};
}

size_t Unpacker::read(Out out) {
  size_t made = 0;
  while (made < out.size() && !(is_whole_ && taken_ == bytes_.size())) {
    const Step next = step_(bytes_.subspan(taken_), out.subspan(made));
    taken_ += next.taken;
    made += next.made;
    is_whole_ = next.is_end;
    require<DataError>(next.is_sound, "{}: damaged at byte {} of {}; copy the file again", name_, taken_,
                       bytes_.size());
    require<DataError>(next.taken + next.made > 0 || is_whole_,
                       "{}: truncated: the compressed data end within a block; copy the file again", name_);
  }
  return made;
}

bool Unpacker::append_to(std::string& text) {
  constexpr size_t kPart = size_t{1} << 24;
  const size_t before = text.size();
  text.resize(before + kPart);
  text.resize(before + read(std::span(text).subspan(before)));
  return text.size() == before + kPart;
}

bool has_suffix(std::string_view path, std::initializer_list<std::string_view> suffixes) {
  return std::ranges::any_of(suffixes, [path](std::string_view suffix) {
    const std::string_view end = path.substr(path.size() - std::min(path.size(), suffix.size()));
    return end.size() == suffix.size() && strncasecmp(end.data(), suffix.data(), suffix.size()) == 0;
  });
}

std::string_view unpacked_name(std::string_view path) {
  const FileCodec* const codec = codec_of(path, "");
  return path.substr(0, path.size() - (codec != nullptr ? codec->suffix.size() : 0));
}

TextFile::TextFile(const std::string& path)
    : file_(map_file<DataError>(path)), is_packed_(codec_of(path, file_.text()) != nullptr) {
  Unpacker unpacker = Unpacker::open(file_);
  while (is_packed_ && unpacker.append_to(unpacked_)) {
  }
  const std::string packed = why_packed(std::as_bytes(std::span(text())));
  require<DataError>(packed.empty(), "{}: {}{}", path, is_packed_ ? "its content " : "", packed);
}

std::string_view TextFile::text() const {
  return without_byte_order_mark(is_packed_ ? std::string_view(unpacked_) : file_.text());
}

}  // namespace mantissa
