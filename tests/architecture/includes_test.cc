// The arrows between rooms go down. The second half breaks the rules in small made-up trees and
// expects each breach to be named with file and line.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/architecture/include_check.h"
#include "tests/architecture/rooms.h"

namespace cadre::architecture {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const std::filesystem::path& Root() {
  static const auto& root = *new std::filesystem::path(CADRE_SOURCE_DIR);
  return root;
}

std::vector<std::string> Check(const std::vector<SourceFile>& files) {
  std::vector<std::string> lines;
  for (const Violation& violation : CheckIncludes(Rooms(), files)) {
    std::ostringstream line;
    line << violation;
    lines.push_back(line.str());
  }
  return lines;
}

TEST(RepositoryTest, EveryIncludeFollowsTheTableOfRooms) {
  const std::vector<SourceFile> files = ReadSources(Root(), Rooms());
  ASSERT_GE(files.size(), 50u) << "the sources were not found below " << Root();
  EXPECT_THAT(Check(files), IsEmpty());
}

TEST(RepositoryTest, EveryRoomHasSources) {
  const std::vector<SourceFile> files = ReadSources(Root(), Rooms());
  for (const Room& room : Rooms()) {
    int found = 0;
    for (const SourceFile& file : files) found += RoomOf(file.path, Rooms()) == room.name;
    EXPECT_GT(found, 0) << room.name << "/ holds no source file";
  }
}

TEST(RepositoryTest, TheTableOfRoomsIsTheOneInTheDocumentation) {
  std::ifstream in(Root() / "docs/architecture.md");
  const std::string markdown(std::istreambuf_iterator<char>(in), {});
  const std::vector<Room> documented = ParseRoomsTable(markdown);
  ASSERT_FALSE(documented.empty()) << "docs/architecture.md has no table of rooms";
  for (const Room& room : Rooms()) {
    EXPECT_THAT(documented,
                Contains(AllOf(Field(&Room::name, room.name), Field(&Room::floor, room.floor),
                               Field(&Room::may_include, room.may_include))))
        << "docs/architecture.md says something else about " << room.name;
  }
  for (const Room& room : documented) {
    EXPECT_THAT(Rooms(), Contains(Field(&Room::name, room.name)))
        << "docs/architecture.md names a room that the table in rooms.cc lacks";
  }
}

TEST(TableTest, EveryArrowGoesDown) { EXPECT_THAT(CheckTable(Rooms()), IsEmpty()); }

TEST(TableTest, NamesAnArrowThatDoesNotGoDownAndANameThatIsNoRoom) {
  EXPECT_THAT(CheckTable({{0, "base", {"tensor"}}, {1, "tensor", {"base", "cellar"}}}),
              ElementsAre("base may include tensor, which is not below it",
                          "tensor may include cellar, which is no room"));
}

TEST(ParseIncludesTest, FindsIncludesAndTheirLines) {
  const std::vector<Include> includes = ParseIncludes(
      "#pragma once\n"
      "#include <vector>\n"
      "  #  include \"tensor/shape.h\"  // why\n"
      "// #include \"base/status.h\"\n"
      "/* #include \"base/a.h\"\n"
      "#include \"base/b.h\"\n"
      "*/ #include \"base/c.h\"\n"
      "#include MACRO\n");
  ASSERT_EQ(includes.size(), 3u);
  EXPECT_EQ(includes[0].target, "vector");
  EXPECT_FALSE(includes[0].quoted);
  EXPECT_EQ(includes[1].target, "tensor/shape.h");
  EXPECT_EQ(includes[1].line, 3);
  EXPECT_TRUE(includes[1].quoted);
  EXPECT_EQ(includes[2].target, "base/c.h");
  EXPECT_EQ(includes[2].line, 7);
}

TEST(RoomOfTest, TakesTheDeepestRoom) {
  EXPECT_EQ(RoomOf("worker/nn/conv.h", Rooms()), "worker/nn");
  EXPECT_EQ(RoomOf("worker/main.cc", Rooms()), "worker");
  EXPECT_EQ(RoomOf("kernels/cpu/conv.cc", Rooms()), "kernels");
  EXPECT_EQ(RoomOf("proto/cadre/v1/run.pb.h", Rooms()), "proto");
  EXPECT_EQ(RoomOf("workers/main.cc", Rooms()), "");
}

TEST(CheckIncludesTest, AcceptsArrowsThatGoDown) {
  EXPECT_THAT(Check({{"base/status.h", "#include \"absl/status/status.h\"\n#include <string>\n"},
                     {"tensor/shape.h", "#include \"base/status.h\"\n"},
                     {"worker/train/step.cc",
                      "#include \"worker/nn/network.h\"\n#include \"server/client/client.h\"\n"
                      "#include \"proto/cadre/v1/run.pb.h\"\n"},
                     {"worker/main.cc", "#include \"coordinator/client/client.h\"\n"}}),
              IsEmpty());
}

TEST(CheckIncludesTest, NamesAnArrowUpward) {
  EXPECT_THAT(Check({{"tensor/shape.h", "#pragma once\n\n#include \"kernels/kernels.h\"\n"}}),
              ElementsAre("tensor/shape.h:3: tensor may not include kernels: arrow upward, from "
                          "floor 1 to floor 2"));
}

TEST(CheckIncludesTest, NamesAnArrowSideways) {
  EXPECT_THAT(Check({{"worker/nn/conv.cc", "#include \"worker/optim/sgd.h\"\n"}}),
              ElementsAre("worker/nn/conv.cc:1: worker/nn may not include worker/optim: arrow "
                          "sideways, both are on floor 5"));
}

TEST(CheckIncludesTest, NamesAnArrowDownThatIsNotInTheTable) {
  EXPECT_THAT(Check({{"kernels/relu.cc", "#include \"proto/cadre/v1/run.pb.h\"\n"}}),
              ElementsAre("kernels/relu.cc:1: kernels may not include proto: not in its row of "
                          "the table of rooms"));
}

TEST(CheckIncludesTest, NamesAProgramThatEntersAnothersHouse) {
  EXPECT_THAT(
      Check({{"cli/local.cc", "\n#include \"coordinator/round.h\"\n"},
             {"worker/main.cc", "#include \"coordinator/plan/plan.h\"\n"}}),
      ElementsAre("cli/local.cc:2: cli may not include coordinator: programs meet in proto/ and "
                  "lend only their client/ folder",
                  "worker/main.cc:1: worker may not include coordinator/plan: programs meet in "
                  "proto/ and lend only their client/ folder"));
}

TEST(CheckIncludesTest, NamesACircleAtTheIncludeThatClosesIt) {
  const std::vector<std::string> found =
      Check({{"base/a.h", "#include \"tensor/b.h\"\n"},
             {"kernels/c.h", "\n#include \"base/a.h\"\n"},
             {"tensor/b.h", "#pragma once\n#include \"kernels/c.h\"\n"}});
  EXPECT_THAT(found, UnorderedElementsAre(
                         HasSubstr("base/a.h:1: base may not include tensor: arrow upward"),
                         HasSubstr("tensor/b.h:2: tensor may not include kernels: arrow upward"),
                         "kernels/c.h:2: circle among rooms: base -> tensor -> kernels -> base"));
}

TEST(CheckIncludesTest, NamesIncludesThatStartAtNoRoom) {
  EXPECT_THAT(Check({{"base/status.cc",
                      "#include \"status.h\"\n#include \"tests/base/fake.h\"\n"
                      "#include <base/status.h>\n"}}),
              ElementsAre("base/status.cc:1: \"status.h\" starts at no room",
                          "base/status.cc:2: \"tests/base/fake.h\" starts at no room",
                          "base/status.cc:3: <base/status.h> is ours: write it in quotes"));
}

TEST(ReadSourcesTest, WalksTheRoomsAndNothingElse) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "read_sources";
  std::filesystem::remove_all(root);
  for (const char* path :
       {"base/status.h", "worker/nn/conv.cc", "worker/README.md", "bench/x.cc"}) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << "// " << path;
  }
  const std::vector<SourceFile> files = ReadSources(root, Rooms());
  EXPECT_THAT(files, ElementsAre(Field(&SourceFile::path, "base/status.h"),
                                 Field(&SourceFile::path, "worker/nn/conv.cc")));
  EXPECT_EQ(files[1].text, "// worker/nn/conv.cc");
  std::filesystem::remove_all(root);
}

TEST(ParseRoomsTableTest, ReadsNamesWithAndWithoutBackticks) {
  EXPECT_THAT(
      ParseRoomsTable("text\n"
                      "| floor | room | holds | may include |\n"
                      "| --- | --- | --- | --- |\n"
                      "| 0 | `base/` | status, files | - |\n"
                      "| 3 | `server/client/`, `coordinator/client/` | x | base, `proto` |\n"
                      "\n"
                      "| 9 | `other` | another table | base |\n"),
      ElementsAre(Room{0, "base", {}}, Room{3, "server/client", {"base", "proto"}},
                  Room{3, "coordinator/client", {"base", "proto"}}));
}

TEST(ParseRoomsTableTest, IsEmptyWithoutTheTable) {
  EXPECT_THAT(ParseRoomsTable("| word | meaning |\n| --- | --- |\n| run | a job |\n"), IsEmpty());
}

}  // namespace
}  // namespace cadre::architecture
