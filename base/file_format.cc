// Most formats begin with fixed bytes (kPrefixes). The others need a predicate each: because fixed
// bytes are elsewhere (tar), because they follow a length (safetensors), or because the format is
// text.
#include "base/file_format.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

constexpr absl::string_view kSaveAsUtf8 = "save it as UTF-8 without a byte order mark";

struct Prefix {
  absl::string_view bytes;
  FileFormat format;
};

// Literals with a length, because they contain zeros.
template <size_t N>
constexpr absl::string_view Bytes(const char (&text)[N]) {
  return {text, N - 1};
}

constexpr Prefix kPrefixes[] = {
    {"version https://git-lfs.github.com/spec/",
     {"a Git LFS pointer", "fetch the file itself with 'git lfs pull'"}},
    {Bytes("\xfd"
           "7zXZ\0"),
     {"compressed (xz)", "decompress it, for example with 'xz -d'"}},
    {Bytes("\x28\xb5\x2f\xfd"), {"compressed (zstd)", "decompress it, for example with 'zstd -d'"}},
    {Bytes("\x04\x22\x4d\x18"), {"compressed (lz4)", "decompress it, for example with 'lz4 -d'"}},
    {Bytes("LZIP\x01"), {"compressed (lzip)", "decompress it, for example with 'lzip -d'"}},
    {Bytes("7z\xbc\xaf\x27\x1c"), {"a 7z archive", "extract it"}},
    {Bytes("Rar!\x1a\x07"), {"a RAR archive", "extract it"}},
    {Bytes("PK\x03\x04"), {"a zip archive, as torch.save and numpy.savez write", ""}},
    {Bytes("PK\x05\x06"), {"an empty zip archive", ""}},
    {Bytes("\x93NUMPY"), {"a NumPy array (.npy)", ""}},
    {Bytes("\x89HDF\r\n\x1a\n"), {"an HDF5 file, as Keras writes", ""}},
    {Bytes("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9"),
     {"a pickle, as old versions of torch.save write", ""}},
    {Bytes("MMIDIDX\0\0"), {"the index of a data set of Megatron", ""}},
    {Bytes("GGUF"), {"a GGUF file", ""}},
    {Bytes("PAR1"), {"a Parquet file", ""}},
    {Bytes("ARROW1\0\0"), {"an Arrow file", ""}},
    {Bytes("SQLite format 3\0"), {"an SQLite database", ""}},
    {Bytes("%PDF-"), {"a PDF document", ""}},
    {Bytes("\x89PNG\r\n\x1a\n"), {"a PNG image", ""}},
    {Bytes("GIF8"), {"a GIF image", ""}},
    {Bytes("\xff\xd8\xff"), {kJpegFormat, "", false}},
    {Bytes("II\x2a\0"), {"a TIFF image", "", false}},
    {Bytes("MM\0\x2a"), {"a TIFF image", "", false}},
    {Bytes("\xff\xfe\0\0"), {"text in UTF-32", kSaveAsUtf8, false}},
    {Bytes("\xff\xfe"), {"text in UTF-16", kSaveAsUtf8, false}},
    {Bytes("\xfe\xff"), {"text in UTF-16", kSaveAsUtf8, false}},
};

constexpr FileFormat kGzip{"compressed (gzip)", "decompress it, for example with 'gzip -d'"};
constexpr FileFormat kBzip2{"compressed (bzip2)", "decompress it, for example with 'bzip2 -d'"};
constexpr FileFormat kTar{kTarFormat, "extract it"};
constexpr FileFormat kSafetensors{kSafetensorsFormat, ""};
constexpr FileFormat kPickle{"a pickle, as Python writes", ""};
constexpr FileFormat kWebp{"a WebP image", ""};
constexpr FileFormat kIdx{kIdxFormat, "", false};
constexpr FileFormat kOnnx{kOnnxFormat, "", false};
constexpr FileFormat kHtml{"a page of HTML, perhaps the error of a download", "", false, true};
constexpr FileFormat kXml{"an XML document, perhaps the error of a download", "", false, true};
constexpr FileFormat kBareUtf16{"text in UTF-16", kSaveAsUtf8, false};
constexpr FileFormat kMarkedUtf8{"text with a byte order mark", kSaveAsUtf8, false, true};
constexpr FileFormat kText{kTextFormat, "", false, true};

uint8_t At(absl::string_view bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

// The third byte is the only compression method there is; three bits of the fourth are reserved.
bool IsGzip(absl::string_view first) {
  return first.size() >= 10 && absl::StartsWith(first, "\x1f\x8b\x08") &&
         (At(first, 3) & 0xe0) == 0 && (At(first, 9) <= 13 || At(first, 9) == 255);
}

// "BZh", the size of a block and the digits of pi.
bool IsBzip2(absl::string_view first) {
  return first.size() >= 10 && absl::StartsWith(first, "BZh") &&
         absl::StartsWith(first.substr(4), "1AY&SY");
}

bool IsTar(absl::string_view first) {
  return first.size() >= 262 && first.substr(257, 5) == "ustar";
}

// A length of at most 100 MB and the beginning of a JSON object.
bool IsSafetensors(absl::string_view first) {
  if (first.size() < 10 || first.substr(8, 1) != "{") return false;
  if (first.substr(4, 4) != Bytes("\0\0\0\0") || At(first, 3) > 5) return false;
  return first[9] == '"' || first[9] == '}' || first[9] == ' ' || first[9] == '\n';
}

// Since version 4 of its protocol, a pickle is a sequence of frames.
bool IsPickle(absl::string_view first) {
  if (first.size() < 11 || At(first, 0) != 0x80) return false;
  const uint8_t version = At(first, 1);
  return (version == 4 || version == 5) && At(first, 2) == 0x95 &&
         first.substr(8, 3) == Bytes("\0\0\0");
}

// Signed and floating-point elements as well, with 1 to 4 dimensions.
bool IsIdx(absl::string_view first) {
  return first.size() >= 8 && first.substr(0, 2) == Bytes("\0\0") && At(first, 2) >= 8 &&
         At(first, 2) <= 14 && At(first, 3) >= 1 && At(first, 3) <= 4;
}

// The version of the format, then the name of the producer, the graph or the operator sets.
bool IsOnnx(absl::string_view first) {
  return first.size() >= 4 && first[0] == '\x08' && At(first, 1) >= 3 && At(first, 1) <= 20 &&
         (first[2] == '\x12' || first[2] == '\x3a' || first[2] == '\x42');
}

// Letters with a zero after each, or before each.
bool IsBareUtf16(absl::string_view first) {
  if (first.size() < 8) return false;
  for (const size_t letter : {0, 1}) {
    bool matches = true;
    for (size_t i = 0; i < 8; i += 2) {
      matches = matches && first[i + 1 - letter] == '\0' &&
                (absl::ascii_isprint(first[i + letter]) || absl::ascii_isspace(first[i + letter]));
    }
    if (matches) return true;
  }
  return false;
}

bool IsText(absl::string_view first) {
  return !first.empty() && std::all_of(first.begin(), first.end(), [](char c) {
    return absl::ascii_isprint(c) || absl::ascii_isspace(c);
  });
}

const FileFormat* RecognizeText(absl::string_view first) {
  if (IsBareUtf16(first)) return &kBareUtf16;
  const bool marked = absl::StartsWith(first, "\xef\xbb\xbf");
  const absl::string_view text =
      absl::StripLeadingAsciiWhitespace(marked ? first.substr(3) : first);
  for (const absl::string_view begin : {"<!doctype html", "<html"}) {
    if (absl::StartsWithIgnoreCase(text, begin)) return &kHtml;
  }
  if (absl::StartsWith(text, "<?xml")) return &kXml;
  if (marked) return &kMarkedUtf8;
  return IsText(first) ? &kText : nullptr;
}

}  // namespace

const FileFormat* RecognizeFormat(absl::string_view first) {
  first = first.substr(0, kFormatBytes);
  for (const Prefix& prefix : kPrefixes) {
    if (absl::StartsWith(first, prefix.bytes)) return &prefix.format;
  }
  if (IsGzip(first)) return &kGzip;
  if (IsBzip2(first)) return &kBzip2;
  if (IsTar(first)) return &kTar;
  if (IsSafetensors(first)) return &kSafetensors;
  if (IsPickle(first)) return &kPickle;
  if (absl::StartsWith(first, "RIFF") && first.size() >= 12 && first.substr(8, 4) == "WEBP") {
    return &kWebp;
  }
  if (IsIdx(first)) return &kIdx;
  if (IsOnnx(first)) return &kOnnx;
  return RecognizeText(first);
}

const FileFormat* FormatOtherThanNumbers(absl::string_view first, uint64_t bytes_per_number) {
  const FileFormat* const format = RecognizeFormat(first);
  if (format == nullptr) return nullptr;
  return format->certain || (format->text && bytes_per_number > 1) ? format : nullptr;
}

std::string FormatNote(absl::string_view first, absl::string_view expected) {
  const FileFormat* format = RecognizeFormat(first);
  if (format == nullptr || format->name == expected) return "";
  // Text remains text in another encoding.
  const bool helps =
      !format->remedy.empty() && (format->remedy != kSaveAsUtf8 || expected == kTextFormat);
  return absl::StrCat(": it is ", format->name, helps ? "; " : "", helps ? format->remedy : "");
}

}  // namespace cadre
