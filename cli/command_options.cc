// Flags that several verbs share. The parser (cli/command_line.h) has already checked single
// values; this file reads texts with special syntax (--mesh, --layer, --device) and applies the
// rules that depend on the verb.
#include "cli/command_options.h"

#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "cli/pin_flags.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// The kind of device. The number of a GPU ("cuda:1") is a setting of each worker, so the run file
// has only "cuda".
absl::StatusOr<std::optional<v1::Cluster::Device>> DeviceOf(const CommandLine& line) {
  const std::optional<std::string> device = line.Get<std::string>("device");
  if (!device) return std::nullopt;
  if (*device == "cpu") return v1::Cluster::CPU;
  int gpu = 0;
  absl::string_view number = *device;
  const bool numbered =
      absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &gpu) && gpu >= 0;
  if (*device != "cuda" && !numbered) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device takes cpu, cuda or, for 'cadre local', cuda:N (N = 0, 1, ...), not "
                     "'",
                     *device, "'"));
  }
  if (numbered && line.verb()->name != "local") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", *device, " is only valid with 'cadre local': each worker of a ",
                     "cluster has its own --device; use --device cuda"));
  }
  return v1::Cluster::CUDA;
}

// The value of a flag whose choices are names of the enum.
template <typename Enum>
std::optional<Enum> EnumOf(const CommandLine& line, absl::string_view flag) {
  const std::optional<std::string> name = line.Get<std::string>(flag);
  return name ? EnumFromText<Enum>(*name) : std::nullopt;
}

}  // namespace

GlobalOptions GlobalOptionsOf(const CommandLine& line) {
  return {
      .coordinator = line.Value<std::string>("coordinator"),
      .format = line.Value<std::string>("o") == "json" ? OutputFormat::kJson : OutputFormat::kTable,
      .timeout = line.Get<absl::Duration>("timeout"),
      .quiet = line.On("quiet")};
}

absl::StatusOr<SpecFlags> SpecFlagsOf(const CommandLine& line) {
  SpecFlags flags{.groups = line.Get<uint32_t>("groups"),
                  .ranks = line.Get<uint32_t>("ranks"),
                  .aggregators = line.Get<uint32_t>("aggregators"),
                  .model_ranks = line.Get<uint32_t>("model-ranks"),
                  .space_ranks = line.Get<uint32_t>("space-ranks"),
                  .collectives = EnumOf<v1::Cluster::CollectivePolicy>(line, "collectives"),
                  .overlap = EnumOf<v1::Cluster::Overlap>(line, "overlap"),
                  .precision = EnumOf<v1::RunSpec::Precision>(line, "precision"),
                  .batch = line.Get<uint32_t>("batch"),
                  .from = line.Get<std::string>("from"),
                  .checkpoint = line.Get<std::string>("checkpoint")};
  CADRE_ASSIGN_OR_RETURN(flags.device, DeviceOf(line));
  if (const auto mesh = line.Get<std::string>("mesh")) {
    CADRE_ASSIGN_OR_RETURN(flags.mesh, ParseMesh(*mesh));
  }
  if (const auto layers = line.Get<std::string>("layer")) {
    CADRE_ASSIGN_OR_RETURN(flags.layers, ParseLayerPins(*layers));
  }
  return flags;
}

absl::StatusOr<std::string> ProgramsFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("cannot find the folder of the other programs");
  return self.parent_path().string();
}

}  // namespace cadre
