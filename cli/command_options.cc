// Flags that several verbs share. The parser (cli/command_line.h) has already checked single
// values; this file reads texts with special syntax (--mesh, --layer, --device) and applies the
// rules that depend on the verb.
#include "cli/command_options.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/rpc/address_list.h"
#include "base/status.h"
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
    return UsageError(
        absl::StrCat("--device takes cpu, cuda or, for 'cadre local', cuda:N (N = 0, 1, ...), not "
                     "'",
                     *device, "'"));
  }
  if (numbered && line.verb()->name != "local") {
    return UsageError(absl::StrCat("--device ", *device,
                                   " is only valid with 'cadre local': each worker of a ",
                                   "cluster has its own --device; use --device cuda"));
  }
  return v1::Cluster::CUDA;
}

// Splits "a=b,c=d", the syntax of --mesh and --layer. `expected` describes the text in errors.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> SplitPairs(
    absl::string_view flag, absl::string_view text, absl::string_view expected) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::set<std::string> names;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == absl::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      return UsageError(absl::StrCat("--", flag, " takes ", expected, ", not '", part, "'"));
    }
    pairs.emplace_back(part.substr(0, equals), part.substr(equals + 1));
    if (!names.insert(pairs.back().first).second) {
      return UsageError(absl::StrCat("--", flag, " has ", pairs.back().first, " twice"));
    }
  }
  return pairs;
}

// "data=4,model=2", in the order of the axes.
absl::StatusOr<std::vector<v1::MeshAxis>> ParseMesh(absl::string_view text) {
  CADRE_ASSIGN_OR_RETURN(const auto pairs,
                         SplitPairs("mesh", text, "axes and sizes such as data=4,model=2"));
  std::vector<v1::MeshAxis> mesh;
  for (const auto& [name, value] : pairs) {
    uint32_t size = 0;
    if (!absl::SimpleAtoi(value, &size) || size == 0) {
      return UsageError(absl::StrCat("--mesh takes a whole number of at least 1 as the size of ",
                                     name, ", not '", value, "'"));
    }
    v1::MeshAxis& axis = mesh.emplace_back();
    axis.set_name(name);
    axis.set_size(size);
  }
  return mesh;
}

// "stage@1"; returns false if the text has another form.
bool ParseCoordinate(absl::string_view text, v1::LayerPin& pin) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('@', 1));
  uint32_t coordinate = 0;
  if (parts.first.empty() || !absl::SimpleAtoi(parts.second, &coordinate)) return false;
  v1::AxisCoordinate& at = *pin.add_at();
  at.set_axis(std::string(parts.first));
  at.set_coordinate(coordinate);
  return true;
}

// "fc6=model,conv1=data,fc7=stage@1,fc8=model+stage@1".
absl::StatusOr<std::vector<v1::LayerPin>> ParseLayerPins(absl::string_view text) {
  CADRE_ASSIGN_OR_RETURN(
      const auto pairs,
      SplitPairs("layer", text,
                 "layers and how to split or place them such as fc6=model,conv1=data,fc7=stage@1"));
  std::vector<v1::LayerPin> pins;
  for (const auto& [name, value] : pairs) {
    v1::LayerPin& pin = pins.emplace_back();
    pin.set_layer(name);
    for (const absl::string_view term : absl::StrSplit(value, '+')) {
      if (ParseCoordinate(term, pin)) continue;
      const auto parallelism = EnumFromText<v1::LayerPin::Parallelism>(term);
      if (!parallelism || pin.parallelism() != v1::LayerPin::PARALLELISM_UNSPECIFIED) {
        return UsageError(absl::StrCat(
            "--layer splits '", name, "' by data (samples), model (outputs), model-in (inputs) or ",
            "domain (rows of images), or places it at a coordinate such as stage@1, not by '",
            value, "'"));
      }
      pin.set_parallelism(*parallelism);
    }
  }
  return pins;
}

constexpr char kCoordinator[] = "127.0.0.1:7000";

OutputFormat FormatOf(absl::string_view name) {
  if (name == "wide") return OutputFormat::kWide;
  if (name == "name") return OutputFormat::kName;
  if (name == "json") return OutputFormat::kJson;
  return name == "jsonl" ? OutputFormat::kJsonLines : OutputFormat::kTable;
}

// The value of a flag whose choices are names of the enum.
template <typename Enum>
std::optional<Enum> EnumOf(const CommandLine& line, absl::string_view flag) {
  const std::optional<std::string> name = line.Get<std::string>(flag);
  return name ? EnumFromText<Enum>(*name) : std::nullopt;
}

}  // namespace

GlobalOptions GlobalOptionsOf(const CommandLine& line) {
  const bool insecure = line.On("insecure");
  const char* const folder = getenv("CADRE_TLS");
  // A flag has precedence over the environment.
  const std::string tls = folder == nullptr || insecure ? "" : folder;
  const char* const address = getenv("CADRE_COORDINATOR");
  const bool named = address != nullptr && *address != '\0';
  return {
      .coordinator = line.Get<std::string>("coordinator").value_or(named ? address : kCoordinator),
      .tls = line.Get<std::string>("tls").value_or(tls),
      .insecure = insecure,
      .format = FormatOf(line.Value<std::string>("o")),
      .timeout = line.Get<absl::Duration>("timeout"),
      .quiet = line.On("quiet")};
}

absl::StatusOr<Credentials> CredentialsOf(const GlobalOptions& options) {
  auto credentials = Credentials::FromFlags(options.tls, options.insecure);
  // Other errors are those of the folder's files.
  const bool contradict = options.tls.empty() == !options.insecure;
  if (!credentials.ok() && contradict) return UsageError(credentials.status().message());
  return credentials;
}

// --timeout limits the whole command, so it also limits the time to connect.
absl::StatusOr<std::unique_ptr<CoordinatorClient>> MakeClient(const GlobalOptions& options) {
  CoordinatorClient::Options client;
  CADRE_ASSIGN_OR_RETURN(client.credentials, CredentialsOf(options));
  const absl::Status listed = CheckAddresses("--coordinator", options.coordinator);
  if (!listed.ok()) return UsageError(listed.message());
  client.coordinator = options.coordinator;
  if (options.timeout) client.timeout = *options.timeout;
  if (options.timeout) client.dial_timeout = std::min(client.dial_timeout, *options.timeout);
  return std::make_unique<CoordinatorClient>(client);
}

absl::Time DeadlineOf(const GlobalOptions& options, absl::Time now) {
  return options.timeout ? now + *options.timeout : absl::InfiniteFuture();
}

ProgressOptions ProgressOnErr(const GlobalOptions& options, const Console& console) {
  return {.terminal = console.err_terminal,
          .color = console.color && console.err_terminal,
          .quiet = options.quiet,
          .width = console.width};
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

// The link in /proc is right even if the program was found in PATH or through a symbolic link.
absl::StatusOr<std::string> ProgramsFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("cannot find the folder of the other programs");
  return self.parent_path().string();
}

}  // namespace cadre
