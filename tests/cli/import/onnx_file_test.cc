#include "cli/import/onnx_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/base/temporary_folder.h"
#include "tests/cli/import/graphs.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

TEST(OnnxFileTest, ReadsTensorsOfOtherFilesOnlyInTheFolder) {
  const TemporaryFolder folder;
  folder.Write("weights", std::string(4 * 6, '\0'));
  onnx::Model model = Parse({1, 2, 1, 1}, Weight("w", {3, 2}) + Node("Flatten x -> f") +
                                              Node("Gemm f w -> out", Int("transB", 1)));
  onnx::Tensor& tensor = *model.mutable_graph()->mutable_initializer(0);
  tensor.clear_float_data();
  tensor.set_data_location(1);
  onnx::Entry& location = *tensor.add_external_data();
  location.set_key("location");
  location.set_value("weights");
  EXPECT_TRUE(ImportOnnx(model, folder.path()).ok());
  for (const char* path : {"../weights", "/etc/passwd", "missing"}) {
    location.set_value(path);
    EXPECT_FALSE(ImportOnnx(model, folder.path()).ok()) << path;
  }
  // In a cache of downloads, the model and its weights are links to one folder of blobs.
  std::filesystem::create_directories(folder / "snapshot");
  std::filesystem::create_symlink("../weights", folder / "snapshot/linked");
  location.set_value("linked");
  EXPECT_THAT(ErrorOf(ImportOnnx(model, folder / "snapshot")),
              HasSubstr("leads out of the model's folder by '..' or by a link"));
  EXPECT_TRUE(ImportOnnx(model, folder / "snapshot", {.linked_folder = folder.path()}).ok());
  location.set_value("../weights");
  EXPECT_FALSE(ImportOnnx(model, folder / "snapshot", {.linked_folder = folder.path()}).ok());
  location.set_value("weights");
  onnx::Entry& offset = *tensor.add_external_data();
  offset.set_key("offset");
  offset.set_value("8");
  EXPECT_THAT(ErrorOf(ImportOnnx(model, folder.path())), HasSubstr("from byte 8"));
}

TEST(OnnxFileTest, RefusesFilesThatAreNotModels) {
  EXPECT_THAT(ParseOnnx("text").status().message(), HasSubstr("not an ONNX model"));
  EXPECT_THAT(ParseOnnx("version https://git-lfs.github.com/spec/v1\n").status().message(),
              HasSubstr("is not an ONNX model: it is a Git LFS pointer"));
  onnx::Model old = Parse({1, 2, 1, 1}, Node("Flatten x -> out"));
  old.mutable_opset_import(0)->set_version(9);
  EXPECT_THAT(ParseOnnx(old.SerializeAsString()).status().message(), HasSubstr("operator set 9"));
  // The default domain has two names.
  old.mutable_opset_import(0)->set_domain("ai.onnx");
  EXPECT_THAT(ParseOnnx(old.SerializeAsString()).status().message(), HasSubstr("operator set 9"));
  old.add_opset_import()->set_version(17);
  EXPECT_THAT(ParseOnnx(old.SerializeAsString()).status().message(),
              HasSubstr("several operator sets of the domain ai.onnx: 9, 17"));
  old.mutable_opset_import(0)->set_version(17);
  EXPECT_TRUE(ParseOnnx(old.SerializeAsString()).ok());
  old.clear_opset_import();
  old.add_opset_import()->set_domain("com.microsoft");
  EXPECT_THAT(ParseOnnx(old.SerializeAsString()).status().message(),
              HasSubstr("states no operator set (opset_import) of the domain ai.onnx"));
}

}  // namespace
}  // namespace cadre
