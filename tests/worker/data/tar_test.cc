// Archives are listed as they were written, in every way of writing names and sizes; damaged ones
// are named with the place of the damage.
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
using ::testing::HasSubstr;

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
  return bytes.substr(static_cast<size_t>(member.begin), static_cast<size_t>(member.size));
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
  EXPECT_TRUE(listed.members[0].is_file);
  EXPECT_FALSE(listed.members[1].is_file);
  EXPECT_FALSE(listed.members[4].is_file);
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

TEST(TarTest, JoinsThePrefixOfUstar) {
  std::string bytes = TarBuilder().Add("name.jpg", "x").Bytes();
  SetTarField(bytes, 0, 345, "some/folder");
  EXPECT_THAT(List(bytes).names(), ElementsAre("some/folder/name.jpg"));
  // GNU's old format keeps times there.
  SetTarField(bytes, 0, 257, "ustar  ");
  EXPECT_THAT(List(bytes).names(), ElementsAre("name.jpg"));
}

TEST(TarTest, ReadsSizesInEveryForm) {
  const std::string contents(600, 'c');
  std::string binary = TarBuilder().Add("a", contents).Add("b", "").Bytes();
  SetTarField(binary, 0, 124, std::string("\x80\0\0\0\0\0\0\0\0\0\x02\x58", 12));
  EXPECT_EQ(List(binary).members.at(0).size, 600);
  EXPECT_THAT(List(binary).names(), ElementsAre("a", "b"));
  std::string spaces = TarBuilder().Add("a", contents).Bytes();
  SetTarField(spaces, 0, 124, "       1130 ");
  EXPECT_EQ(List(spaces).members.at(0).size, 600);
  // The header of a pax archive may hold anything where the record says better.
  std::string pax = TarBuilder().AddPax({{"size", "600"}}, "a", contents).Bytes();
  SetTarField(pax, 2, 124, "00000000000");
  EXPECT_EQ(List(pax).members.at(0).size, 600);
  EXPECT_TRUE(List(pax).status.ok());
}

TEST(TarTest, AMemberIsFoundAgainFromItsHeader) {
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

TEST(TarTest, NamesWhereItIsCutShort) {
  const std::string whole =
      TarBuilder().Add("a", "1").Add("b", std::string(1000, 'b')).Bytes(false);
  for (const size_t size : {size_t{0}, size_t{100}, size_t{511}, size_t{1024}, size_t{1536},
                            size_t{1600}, whole.size()}) {
    const absl::Status status = List(whole.substr(0, size)).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("some.tar: at offset "),
                                                     HasSubstr(absl::StrCat(" of ", size, ": "))));
  }
  EXPECT_THAT(std::string(List(whole.substr(0, 1600)).status.message()),
              HasSubstr("member b has 1000 bytes, but only 64 follow"));
  // One block of zeros is an end, though two are the rule.
  EXPECT_TRUE(List(whole + std::string(512, '\0')).status.ok());
}

void ExpectDamaged(const std::string& bytes, const std::string& what,
                   absl::StatusCode code = absl::StatusCode::kDataLoss) {
  const absl::Status status = List(bytes).status;
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

TEST(TarTest, RefusesDamage) {
  const std::string good = TarBuilder().Add("a", "1").Add("b", "2").Bytes();
  std::string bytes = good;
  bytes[1024 + 3] = 'x';
  ExpectDamaged(bytes, "checksum");
  bytes[3] = 'x';
  ExpectDamaged(bytes, "no tar archive", absl::StatusCode::kInvalidArgument);
  bytes = good;
  SetTarField(bytes, 0, 124, "0000000009x");
  ExpectDamaged(bytes, "size is no number");
  SetTarField(bytes, 0, 124, "77777777777");
  ExpectDamaged(bytes, "member a has 8589934591 bytes");
  SetTarField(bytes, 0, 124, std::string("\x80\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12));
  ExpectDamaged(bytes, "size is no number");
  SetTarField(bytes, 0, 124, std::string(12, '\xff'));
  ExpectDamaged(bytes, "size is no number");
}

TEST(TarTest, RefusesDamagedExtensions) {
  const auto with_pax = [](const std::string& records) {
    return TarBuilder().Add("PaxHeaders/x", records, 'x').Add("a", "1").Bytes();
  };
  for (const std::string records : {"no length", "99 path=a\n", "3 a=b\n", "9 path=ab",
                                    "-5 path=a\n", "99999999999999999999 path=a\n", "0 path=a\n"}) {
    ExpectDamaged(with_pax(records), "pax header");
  }
  ExpectDamaged(with_pax("8 path_\n"), "no '='");
  ExpectDamaged(with_pax("11 size=-1\n"), "size is no number");
  ExpectDamaged(with_pax("22 GNU.sparse.major=1\n"), "sparse", absl::StatusCode::kInvalidArgument);
  ExpectDamaged(with_pax("28 size=9223372036854775807\n"), "member a has 9223372036854775807");
  ExpectDamaged(TarBuilder().Add("x", std::string(70'000, 'n'), 'L').Bytes(), "at most",
                absl::StatusCode::kInvalidArgument);
  ExpectDamaged(TarBuilder().Add("x", "name", 'L').Bytes(), "ends after a header");
  ExpectDamaged(TarBuilder().Add("x", "", 'S').Bytes(), "sparse",
                absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cadre::testing
