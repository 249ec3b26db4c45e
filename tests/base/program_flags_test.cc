#include "base/program_flags.h"

#include <gflags/gflags.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"

DEFINE_string(test_root, "", "a flag that may be repeated");
DEFINE_string(test_other_root, "", "another one, which is not given");
DEFINE_bool(test_switch, false, "a flag without a value");

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// One test, because the values of flags belong to the process.
TEST(ProgramFlagsTest, AllValuesOfRepeatedFlagsCount) {
  const TemporaryFolder folder;
  ASSERT_THAT(WriteFileAtomically(folder / "inner", "--test_root=/in/2\n"), IsOk());
  ASSERT_THAT(WriteFileAtomically(folder / "outer",
                                  absl::StrCat("# folders\n--test-root=/in/1\n--flagfile=",
                                               folder / "inner", "\n--test_root=/in/3\n")),
              IsOk());
  std::vector<std::string> arguments = {"program",        "--test-root=/line/1", "--flagfile",
                                        folder / "outer", "--test_switch",       "-test_root",
                                        "/line/2"};
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  int argc = static_cast<int>(arguments.size());
  char** argv = pointers.data();
  EXPECT_EQ(ParseProgramFlags("", "1", "program_flags_test.cc", &argc, &argv), std::nullopt);
  EXPECT_THAT(AllValues("test_root"), ElementsAre("/line/1", "/in/1", "/in/2", "/in/3", "/line/2"));
  EXPECT_THAT(AllValues("test_other_root"), IsEmpty());
  EXPECT_EQ(FLAGS_test_root, "/line/2");
  EXPECT_TRUE(FLAGS_test_switch);
}

}  // namespace
}  // namespace cadre
