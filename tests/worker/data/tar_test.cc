// Archives are listed for every encoding of names and sizes; errors name archive and offset.
#include "worker/data/tar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/testing.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;

struct Listed {
  std::vector<TarMember> members;
  absl::Status status;

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const TarMember& member : members) names.push_back(member.name);
    return names;
  }
};

Listed List(const std::string& bytes) {
  const MemoryBytes source("some.tar", AsBytes(bytes));
  TarScanner scanner(source);
  Listed listed;
  while (true) {
    const absl::StatusOr<std::optional<TarMember>> member = scanner.Next();
    listed.status = member.status();
    if (!member.ok() || !member->has_value()) return listed;
    listed.members.push_back(**member);
  }
}

std::string ContentsOf(const std::string& bytes, const TarMember& member) {
  return bytes.substr(member.begin, member.size);
}

TEST(TarTest, ListsFilesInOrder) {
  const std::string bytes = TarBuilder()
                                .Add("a.jpg", "first")
                                .Add("folder/", "", '5')
                                .Add("folder/b.cls", std::string(512, 'b'))
                                .Add("empty", "")
                                .Add("link", "", '2')
                                .Add("c", std::string(1300, 'c'))
                                .Bytes();
  const Listed listed = List(bytes);
  ASSERT_TRUE(listed.status.ok()) << listed.status;
  EXPECT_THAT(listed.names(),
              ElementsAre("a.jpg", "folder/", "folder/b.cls", "empty", "link", "c"));
  EXPECT_EQ(ContentsOf(bytes, listed.members[0]), "first");
  EXPECT_EQ(ContentsOf(bytes, listed.members[2]), std::string(512, 'b'));
  EXPECT_EQ(ContentsOf(bytes, listed.members[3]), "");
  EXPECT_EQ(ContentsOf(bytes, listed.members[5]), std::string(1300, 'c'));
  EXPECT_TRUE(listed.members[0].is_file());
  EXPECT_FALSE(listed.members[1].is_file());
  EXPECT_FALSE(listed.members[4].is_file());
}

TEST(TarTest, ReadsLongNames) {
  const std::string name = std::string(120, 'x') + "/" + std::string(130, 'y') + ".jpg";
  const std::string bytes = TarBuilder()
                                .AddPax({{"mtime", "1.5"}, {"path", name}}, "short", "pax")
                                .AddLongName(name, "gnu")
                                .Add("after", "plain")
                                .Bytes();
  const Listed listed = List(bytes);
  ASSERT_TRUE(listed.status.ok()) << listed.status;
  EXPECT_THAT(listed.names(), ElementsAre(name, name, "after"));
  EXPECT_EQ(ContentsOf(bytes, listed.members[0]), "pax");
  EXPECT_EQ(ContentsOf(bytes, listed.members[1]), "gnu");
}

TEST(TarTest, JoinsUstarPrefix) {
  std::string bytes = TarBuilder().Add("name.jpg", "x").Bytes();
  SetTarField(bytes, 0, 345, "some/folder");
  EXPECT_THAT(List(bytes).names(), ElementsAre("some/folder/name.jpg"));
  // GNU's old format stores times in that field.
  SetTarField(bytes, 0, 257, "ustar  ");
  EXPECT_THAT(List(bytes).names(), ElementsAre("name.jpg"));
}

TEST(TarTest, ReadsEveryEncodingOfSizes) {
  const std::string contents(600, 'c');
  std::string binary = TarBuilder().Add("a", contents).Add("b", "").Bytes();
  SetTarField(binary, 0, 124, std::string("\x80\0\0\0\0\0\0\0\0\0\x02\x58", 12));
  EXPECT_EQ(List(binary).members.at(0).size, 600);
  EXPECT_THAT(List(binary).names(), ElementsAre("a", "b"));
  std::string spaces = TarBuilder().Add("a", contents).Bytes();
  SetTarField(spaces, 0, 124, "       1130 ");
  EXPECT_EQ(List(spaces).members.at(0).size, 600);
  // A pax record takes precedence over the header.
  std::string pax = TarBuilder().AddPax({{"size", "600"}}, "a", contents).Bytes();
  SetTarField(pax, 2, 124, "00000000000");
  EXPECT_EQ(List(pax).members.at(0).size, 600);
  EXPECT_TRUE(List(pax).status.ok());
}

// The list of names that GNU tar writes for a folder of an incremental backup, and what vendors
// write.
TEST(TarTest, SkipsContentsOfOtherTypes) {
  const std::string names(700, 'Y');
  for (const char type : {'D', 'V', 'A', 'Z'}) {
    const Listed listed = List(TarBuilder().Add("x", names, type).Add("a.jpg", "image").Bytes());
    ASSERT_TRUE(listed.status.ok()) << listed.status;
    ASSERT_THAT(listed.names(), ElementsAre("x", "a.jpg"));
    EXPECT_FALSE(listed.members[0].is_file());
    EXPECT_EQ(listed.members[1].size, 5);
  }
  // Types of POSIX without contents may have any size.
  for (const char type : {'1', '2', '3', '4', '5', '6'}) {
    std::string bytes = TarBuilder().Add("x", "", type).Add("a.jpg", "image").Bytes();
    SetTarField(bytes, 0, 124, "00000001274");
    EXPECT_THAT(List(bytes).names(), ElementsAre("x", "a.jpg")) << type;
  }
  EXPECT_EQ(List(TarBuilder().Add("old/", "").Bytes()).members.at(0).kind,
            TarMember::Kind::kFolder);
}

TEST(TarTest, ReadsTargetsOfLinks) {
  const std::string path(150, 't');
  const Listed listed = List(TarBuilder()
                                 .AddLink("hard", "a.jpg", '1')
                                 .AddLink("symbolic", "../a.jpg", '2')
                                 .Add("././@LongLink", path, 'K')
                                 .AddLink("gnu", path, '1')
                                 .Add("PaxHeaders/x", "20 linkpath=p/a.jpg\n", 'x')
                                 .AddLink("pax", "a.jpg", '2')
                                 .Add("plain", "1")
                                 .Bytes());
  ASSERT_TRUE(listed.status.ok()) << listed.status;
  std::vector<std::string> targets;
  for (const TarMember& member : listed.members) targets.push_back(member.target);
  EXPECT_THAT(targets, ElementsAre("a.jpg", "../a.jpg", path, "p/a.jpg", ""));
  EXPECT_EQ(listed.members[0].kind, TarMember::Kind::kHardLink);
  EXPECT_EQ(listed.members[1].kind, TarMember::Kind::kSymbolicLink);
}

// What "cat a.tar b.tar" writes, with the zeros that fill a record.
TEST(TarTest, ReadsArchivesThatFollowOneAnother) {
  const std::string first = TarBuilder().Add("a", "1").Bytes() + std::string(30 * 512, '\0');
  const std::string both = first + TarBuilder().Add("b", "2").Bytes() + std::string(100, '\0');
  const Listed listed = List(both);
  ASSERT_TRUE(listed.status.ok()) << listed.status;
  EXPECT_THAT(listed.names(), ElementsAre("a", "b"));
  EXPECT_EQ(ContentsOf(both, listed.members[1]), "2");
  EXPECT_THAT(List(first + "rest").status, IsError(kDataLoss, "follow the end of the archive"));
}

TEST(TarTest, NamesOtherFormats) {
  EXPECT_THAT(List(std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10) + std::string(502, 'z')).status,
              IsError(kInvalidArgument, "it is compressed (gzip); decompress it"));
  EXPECT_THAT(List("version https://git-lfs.github.com/spec/v1\n").status,
              IsError(kInvalidArgument, "this is not a tar archive: it is a Git LFS pointer"));
}

TEST(TarTest, ScansFromOffsetOfMember) {
  const std::string bytes =
      TarBuilder().Add("a", "1").AddPax({{"path", "long name"}}, "b", "22").Add("c", "3").Bytes();
  const MemoryBytes source("some.tar", AsBytes(bytes));
  for (const TarMember& member : List(bytes).members) {
    const auto again = TarScanner(source, member.header).Next();
    ASSERT_TRUE(again.ok() && again->has_value());
    EXPECT_EQ((*again)->name, member.name);
    EXPECT_EQ((*again)->begin, member.begin);
    EXPECT_EQ((*again)->size, member.size);
  }
}

TEST(TarTest, ErrorsNameOffsetOfTruncation) {
  const std::string whole =
      TarBuilder().Add("a", "1").Add("b", std::string(1000, 'b')).Bytes(false);
  for (const size_t size : {size_t{0}, size_t{100}, size_t{511}, size_t{1024}, size_t{1536},
                            size_t{1600}, whole.size()}) {
    const absl::Status status = List(whole.substr(0, size)).status;
    EXPECT_THAT(status, AllOf(IsError(kDataLoss, "some.tar: at offset "),
                              IsError(kDataLoss, absl::StrCat(" of ", size, ": "))));
  }
  EXPECT_THAT(List(whole.substr(0, 1600)).status,
              IsError(kDataLoss, "member b has 1000 bytes, but only 64 follow"));
  // One block of zeros suffices, although archives should end with two.
  EXPECT_TRUE(List(whole + std::string(512, '\0')).status.ok());
}

void ExpectDamaged(const std::string& bytes, const std::string& what,
                   absl::StatusCode code = kDataLoss) {
  EXPECT_THAT(List(bytes).status, IsError(code, what));
}

TEST(TarTest, RejectsDamagedHeaders) {
  const std::string good = TarBuilder().Add("a", "1").Add("b", "2").Bytes();
  std::string bytes = good;
  bytes[1024 + 3] = 'x';
  ExpectDamaged(bytes, "checksum");
  bytes[3] = 'x';
  ExpectDamaged(bytes, "not an uncompressed tar archive", kInvalidArgument);
  bytes = good;
  SetTarField(bytes, 0, 124, "0000000009x");
  ExpectDamaged(bytes, "size is not a number");
  SetTarField(bytes, 0, 124, "77777777777");
  ExpectDamaged(bytes, "member a has 8589934591 bytes");
  SetTarField(bytes, 0, 124, std::string("\x80\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12));
  ExpectDamaged(bytes, "size is not a number");
  SetTarField(bytes, 0, 124, std::string(12, '\xff'));
  ExpectDamaged(bytes, "size is not a number");
}

TEST(TarTest, RejectsDamagedExtensions) {
  const auto with_pax = [](const std::string& records) {
    return TarBuilder().Add("PaxHeaders/x", records, 'x').Add("a", "1").Bytes();
  };
  for (const std::string records : {"no length", "99 path=a\n", "3 a=b\n", "9 path=ab",
                                    "-5 path=a\n", "99999999999999999999 path=a\n", "0 path=a\n"}) {
    ExpectDamaged(with_pax(records), "pax header");
  }
  ExpectDamaged(with_pax("8 path_\n"), "no '='");
  ExpectDamaged(with_pax("11 size=-1\n"), "size is not a number");
  ExpectDamaged(with_pax("22 GNU.sparse.major=1\n"), "sparse", kInvalidArgument);
  ExpectDamaged(with_pax("28 size=9223372036854775807\n"), "member a has 9223372036854775807");
  ExpectDamaged(TarBuilder().Add("x", std::string(70'000, 'n'), 'L').Bytes(), "at most",
                kInvalidArgument);
  ExpectDamaged(TarBuilder().Add("x", "name", 'L').Bytes(), "ends after a header");
  ExpectDamaged(TarBuilder().Add("x", "", 'S').Bytes(), "member x is a sparse file",
                kInvalidArgument);
  ExpectDamaged(TarBuilder()
                    .AddPax({{"GNU.sparse.major", "1"}, {"GNU.sparse.name", "n/a.jpg"}},
                            "GNUSparseFile.1/a.jpg", "1")
                    .Bytes(),
                "member n/a.jpg is a sparse file", kInvalidArgument);
  ExpectDamaged(TarBuilder().Add("x", "22 GNU.sparse.major=1\n", 'g').Bytes(), "sparse",
                kInvalidArgument);
  ExpectDamaged(TarBuilder().Add("x", "part", 'M').Bytes(), "type 'M'", kInvalidArgument);
  ExpectDamaged(TarBuilder().Add("x", "10 path=a\n", 'g').Bytes(), "for all members",
                kInvalidArgument);
  EXPECT_TRUE(List(TarBuilder().Add("x", "13 comment=a\n", 'g').Add("a", "").Bytes()).status.ok());
}

}  // namespace
}  // namespace cadre::testing
