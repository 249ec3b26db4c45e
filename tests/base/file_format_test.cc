// Formats are recognized by the bytes that their programs write, and other bytes are not.
#include "base/file_format.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::testing {
namespace {

using std::string_literals::operator""s;

std::string NameOf(const std::string& first) {
  const FileFormat* format = RecognizeFormat(first);
  return format == nullptr ? "" : std::string(format->name);
}

TEST(FileFormat, NamesFormatsByFirstBytes) {
  const std::string tar =
      "a.jpg" + std::string(252, '\0') + "ustar\00000"s + std::string(247, '\0');
  for (const auto& [first, name] : {
           std::pair{"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"s,
                     "a Git LFS pointer"s},
           {"\x1f\x8b\x08\0\0\0\0\0\0\x03rest"s, "compressed (gzip)"},
           {"BZh91AY&SY\0\0"s, "compressed (bzip2)"},
           {"\xfd"
            "7zXZ\0\0\x04"s,
            "compressed (xz)"},
           {"\x28\xb5\x2f\xfd\x04"s, "compressed (zstd)"},
           {"PK\x03\x04\0\0\x08\x08"s, "a zip archive, as torch.save and numpy.savez write"},
           {"\x93NUMPY\x01\0v\0{'descr'"s, "a NumPy array (.npy)"},
           {"\x89HDF\r\n\x1a\n\0"s, "an HDF5 file, as Keras writes"},
           {"\x80\x04\x95\x10\0\0\0\0\0\0\0\x7d"s, "a pickle, as Python writes"},
           {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a"s,
            "a pickle, as old versions of torch.save write"},
           {tar, "a tar archive"},
           {"\x10\0\0\0\0\0\0\0{\"a\":{"s, "a safetensors file"},
           {"\0\0\x08\x03\0\0\0\x0a\0\0\0\x1c"s, "an IDX file"},
           {"\x08\x08\x12\x07pytorch"s, "an ONNX model"},
           {"\n <!DOCTYPE html>\n<p>not found"s, "a page of HTML, perhaps the error of a download"},
           {"\xef\xbb\xbfname: \"a\""s, "text with a byte order mark"},
           {"\xff\xfen\0a\0m\0e\0"s, "text in UTF-16"},
           {"\xfe\xff\0n\0a\0m\0e"s, "text in UTF-16"},
           {"n\0a\0m\0e\0:\0"s, "text in UTF-16"},
           {"\0n\0a\0m\0e\0:"s, "text in UTF-16"},
           {"Entry not found"s, "text"},
       }) {
    EXPECT_EQ(NameOf(first), name);
    EXPECT_EQ(NameOf(first + std::string(2000, '\1')),
              name == "text" ? "" : name);  // 2000 bytes of control characters are not text
  }
}

TEST(FileFormat, OtherBytesHaveNoName) {
  for (const std::string& first : {""s, "\x1f\x8b"s, "\x1f\x8b\xff\xff\0\0\0\0\0\0"s, "\x89PN"s,
                                   "\x80\x02\xff\xff\xff"s, std::string(600, '\0'), "\0"s}) {
    EXPECT_EQ(NameOf(first), "") << first.size();
    EXPECT_EQ(FormatNote(first), "");
  }
}

// Only bytes that files of plain numbers do not begin with by chance are certain.
TEST(FileFormat, ShortOrTextualSignaturesAreNotCertain) {
  EXPECT_TRUE(RecognizeFormat("\x93NUMPY\x01")->certain);
  EXPECT_TRUE(RecognizeFormat("\x1f\x8b\x08\0\0\0\0\0\0\x03"s)->certain);
  for (const std::string& first : {"\xff\xfe\x10\x20"s, "\xff\xd8\xff\xe0"s, "<html>"s, "text"s}) {
    EXPECT_FALSE(RecognizeFormat(first)->certain) << first;
  }
}

TEST(FileFormat, NoteHasRemedy) {
  EXPECT_EQ(FormatNote("version https://git-lfs.github.com/spec/v1\n"),
            ": it is a Git LFS pointer; fetch the file itself with 'git lfs pull'");
  EXPECT_EQ(FormatNote("\x93NUMPY\x01"), ": it is a NumPy array (.npy)");
  EXPECT_EQ(FormatNote("damaged", kTextFormat), "");
  // Only a reader of text can read the file in another encoding.
  EXPECT_EQ(FormatNote("\xff\xfen\0a\0"s, kTextFormat),
            ": it is text in UTF-16; save it as UTF-8 without a byte order mark");
  EXPECT_EQ(FormatNote("\xef\xbb\xbf{\"weight_map\": {}}", kSafetensorsFormat),
            ": it is text with a byte order mark");
  EXPECT_EQ(FormatNote("\xef\xbb\xbf{\"weight_map\": {}}"), ": it is text with a byte order mark");
}

}  // namespace
}  // namespace cadre::testing
