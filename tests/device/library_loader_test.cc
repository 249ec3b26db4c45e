#include "device/cuda/library_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace cadre {
namespace {

using ::testing::HasSubstr;

// The file that the build made from probe_library.cc.
constexpr char kProbe[] = CADRE_PROBE_LIBRARY;

class LibraryLoaderTest : public ::testing::Test {
 protected:
  LibraryLoaderTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "loader-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~LibraryLoaderTest() override { std::filesystem::remove_all(root_); }

  std::string Folder(const std::string& name) {
    const std::filesystem::path folder = root_ / name;
    std::filesystem::create_directories(folder);
    return folder.string();
  }

  // Copies the probe to `folder`, under a new name, because the dynamic loader identifies a library
  // that is already loaded by its name.
  std::string PutProbe(const std::string& folder, const std::string& name) {
    const std::string file = folder + "/" + name;
    std::filesystem::copy_file(kProbe, file);
    return file;
  }

  static LibraryName Probe(const std::string& soname) {
    return {.title = "the probe",
            .soname = soname,
            .how_to_get = "the tests build it",
            .dependencies = {}};
  }

  std::filesystem::path root_;
};

TEST_F(LibraryLoaderTest, LoadsAndFindsFunctions) {
  const std::string folder = Folder("a");
  const std::string file = PutProbe(folder, "libcadre_probe_found.so.1");
  absl::StatusOr<LoadedLibrary> library =
      LoadLibrary(Probe("libcadre_probe_found.so.1"), {.directories = {folder}});
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->path(), file);
  int (*answer)() = nullptr;
  ASSERT_TRUE(library->Find("cadre_probe_answer", answer).ok());
  EXPECT_EQ(answer(), 42);
}

TEST_F(LibraryLoaderTest, MissingFunctionErrorNamesTheFile) {
  const std::string folder = Folder("a");
  PutProbe(folder, "libcadre_probe_old.so.1");
  absl::StatusOr<LoadedLibrary> library =
      LoadLibrary(Probe("libcadre_probe_old.so.1"), {.directories = {folder}});
  ASSERT_TRUE(library.ok()) << library.status();
  int (*question)() = nullptr;
  const absl::Status found = library->Find("cadre_probe_question", question);
  EXPECT_EQ(found.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(found.message()), HasSubstr("cadre_probe_question"));
  EXPECT_THAT(std::string(found.message()), HasSubstr(folder));
  EXPECT_EQ(question, nullptr);
}

TEST_F(LibraryLoaderTest, FirstDirectoryIsUsed) {
  const std::string first = Folder("first");
  const std::string second = Folder("second");
  const std::string file = PutProbe(first, "libcadre_probe_two.so.1");
  PutProbe(second, "libcadre_probe_two.so.1");
  absl::StatusOr<LoadedLibrary> library =
      LoadLibrary(Probe("libcadre_probe_two.so.1"), {.directories = {first, second}});
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->path(), file);
}

TEST_F(LibraryLoaderTest, MissingLibraryErrorListsSearchedPlaces) {
  const std::string first = Folder("first");
  const std::string second = Folder("second");
  const absl::Status status =
      LoadLibrary(Probe("libcadre_probe_nowhere.so.1"), {.directories = {first, second}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const std::string& part :
       {std::string("the probe (libcadre_probe_nowhere.so.1)"), first, second,
        std::string("lib/cadre-cuda"), std::string("the dynamic loader's own places: "),
        std::string("/usr/local/cuda/lib64"), std::string("the tests build it"),
        std::string("--cuda_libraries")}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST_F(LibraryLoaderTest, InvalidLibraryErrorHasTheLoadersReason) {
  const std::string folder = Folder("a");
  std::ofstream(folder + "/libcadre_probe_text.so.1") << "this is text, and no library at all";
  const absl::Status status =
      LoadLibrary(Probe("libcadre_probe_text.so.1"), {.directories = {folder}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder + "/libcadre_probe_text.so.1: "));
  EXPECT_THAT(std::string(status.message()),
              ::testing::Not(HasSubstr(folder + "/libcadre_probe_text.so.1: no such file")));
}

TEST_F(LibraryLoaderTest, InvalidDirectoryIsAUserError) {
  const std::string gone = (root_ / "gone").string();
  const absl::Status status =
      LoadLibrary(Probe("libcadre_probe_gone.so.1"), {.directories = {gone}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(gone));
}

TEST_F(LibraryLoaderTest, DependenciesAreLoadedFirstAndMayBeMissing) {
  const std::string folder = Folder("a");
  PutProbe(folder, "libcadre_probe_main.so.1");
  PutProbe(folder, "libcadre_probe_friend.so.1");
  LibraryName name = Probe("libcadre_probe_main.so.1");
  name.dependencies = {"libcadre_probe_absent.so.1", "libcadre_probe_friend.so.1"};
  ASSERT_TRUE(LoadLibrary(name, {.directories = {folder}}).ok());
  std::ifstream maps("/proc/self/maps");
  const std::string loaded((std::istreambuf_iterator<char>(maps)), {});
  EXPECT_THAT(loaded, HasSubstr("libcadre_probe_friend.so.1"));
}

TEST_F(LibraryLoaderTest, BuiltinsAreLoadedForTheirBareName) {
  const std::string folder = Folder("a");
  PutProbe(folder, "libcadre_probe_user.so.1");
  PutProbe(folder, "libcadre_probe_compiler.so.1");
  PutProbe(folder, "libcadre_probe_compiler-builtins.so.1.2");
  PutProbe(folder, "libcadre_probe_other-builtins.so.1.2");
  LibraryName name = Probe("libcadre_probe_user.so.1");
  name.dependencies = {"libcadre_probe_compiler.so.1"};
  ASSERT_TRUE(LoadLibrary(name, {.directories = {folder}}).ok());
  std::ifstream maps("/proc/self/maps");
  const std::string loaded((std::istreambuf_iterator<char>(maps)), {});
  EXPECT_THAT(loaded, HasSubstr("libcadre_probe_compiler-builtins.so.1.2"));
  EXPECT_THAT(loaded, ::testing::Not(HasSubstr("libcadre_probe_other-builtins.so.1.2")));
}

}  // namespace
}  // namespace cadre
