// Checks a profile before anything computes with it.
//
// Users edit profiles, and the coordinator stores profiles that other programs have sent, so every
// number is checked: the planner multiplies counts, divides by rates and takes logarithms of sizes.
// Names are checked in the order devices, hosts, links, because later ones refer to earlier ones. A
// cluster of n kinds of hosts needs n (n - 1) / 2 links, and one more for every kind with several
// hosts; a default link replaces all links that are not listed.
//
// Protobuf prints the text, except that a measured time and a sample take one line each, since a
// profile has thousands of them.
#include "plan/cluster_profile.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"
#include "base/status.h"
#include "model/text_message.h"
#include "plan/cost/collective_cost.h"

namespace cadre {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

// Large enough for the full link matrix of a thousand hosts.
constexpr int64_t kMaxProfileBytes = int64_t{256} << 20;

// Maximum numbers of hosts of one kind, of workers of a host, and of workers in total.
constexpr uint32_t kMaxOfHost = 1U << 20;
constexpr uint64_t kMaxWorkers = uint64_t{1} << 30;
// Limits on seconds and on operations per second keep sums of their products finite.
constexpr double kMaxSeconds = 1e12;
constexpr double kMinFlops = 1;
constexpr double kMaxFlops = 1e30;

std::string Indexed(absl::string_view field, int i) { return absl::StrCat(field, "[", i, "]"); }

// Checks a profile from top to bottom.
class ProfileChecker : private ProblemCollector {
 public:
  explicit ProfileChecker(const v1::ClusterProfile& profile) : profile_(profile) {}

  std::vector<Problem> Check() {
    // Devices before hosts before links, because later ones refer to earlier ones.
    for (int i = 0; i < profile_.device_size(); ++i) {
      CheckDevice(Indexed("device", i), profile_.device(i));
    }
    if (profile_.host_size() == 0) Add("host", "is missing; a cluster has at least one");
    for (int i = 0; i < profile_.host_size(); ++i) {
      CheckHost(Indexed("host", i), profile_.host(i));
    }
    CheckWorkers();
    for (int i = 0; i < profile_.link_size(); ++i) {
      CheckHostLink(Indexed("link", i), profile_.link(i));
    }
    if (profile_.has_default_link()) {
      CheckLink("default_link", profile_.default_link());
    } else {
      CheckPairs();
    }
    return std::move(problems_);
  }

 private:
  // Seconds: at least 0, or greater than 0 if `positive`.
  void CheckNumber(const std::string& field, double value, bool positive = false) {
    if (value > kMaxSeconds && std::isfinite(value)) {
      Add(field, "is ", value, ", must be at most ", kMaxSeconds);
    } else if (!std::isfinite(value) || value < 0 || (positive && value == 0)) {
      Add(field, "is ", value, ", must be ",
          positive ? "a finite number above 0" : "finite and not negative");
    }
  }

  // Returns whether the name is valid and new.
  bool CheckName(const std::string& field, const std::string& name, std::set<std::string>& names) {
    if (name.empty()) {
      Add(field, "is missing");
      return false;
    }
    if (names.insert(name).second) return true;
    Add(field, Quoted(name), " is used twice");
    return false;
  }

  void CheckDevice(const std::string& field, const v1::DeviceProfile& device) {
    CheckName(field + ".name", device.name(), devices_);
    if (!(device.flops() >= kMinFlops && device.flops() <= kMaxFlops)) {
      Add(field + ".flops", "is ", device.flops(), ", must be a finite number above 0: ", kMinFlops,
          " to ", kMaxFlops);
    }
    CheckNumber(field + ".update_seconds", device.update_seconds());
    CheckNumber(field + ".copy_seconds", device.copy_seconds());
    std::set<std::string> models;
    for (int i = 0; i < device.model_size(); ++i) {
      const std::string at = absl::StrCat(field, ".", Indexed("model", i));
      CheckName(at + ".model", device.model(i).model(), models);
      CheckTimes(at, device.model(i));
    }
  }

  void CheckTimes(const std::string& field, const v1::ModelTimes& times) {
    std::set<std::tuple<std::string, uint32_t, uint32_t, uint32_t, uint32_t>> parts;
    const auto whole = [](uint32_t count) { return std::max(1U, count); };
    for (int i = 0; i < times.time_size(); ++i) {
      const v1::LayerTime& time = times.time(i);
      const std::string at = absl::StrCat(field, ".", Indexed("time", i));
      if (time.layer().empty()) Add(at + ".layer", "is missing");
      if (time.samples() == 0) Add(at + ".samples", "is 0, must be at least 1");
      CheckNumber(at + ".forward", time.forward());
      CheckNumber(at + ".backward", time.backward());
      if (!parts
               .emplace(time.layer(), time.samples(), whole(time.rows()), whole(time.outs()),
                        whole(time.ins()))
               .second) {
        Add(at, "the part of layer ", Quoted(time.layer()), " is timed twice");
      }
    }
  }

  void CheckHost(const std::string& field, const v1::HostProfile& host) {
    if (CheckName(field + ".name", host.name(), host_names_)) {
      hosts_[host.name()] = std::max(1U, host.count());
    }
    if (!devices_.contains(host.device())) {
      Add(field + ".device", "unknown device ", Quoted(host.device()),
          devices_.empty() ? "; the profile has none" : "; known devices: ",
          absl::StrJoin(devices_, ", "));
    }
    CheckCount(field + ".count", host.count());
    CheckCount(field + ".workers", host.workers());
    if (host.has_inside()) {
      CheckLink(field + ".inside", host.inside());
    } else if (host.workers() > 1) {
      Add(field + ".inside", "is missing: ", Quoted(host.name()), " has ", host.workers(),
          " workers and needs the link between them");
    }
  }

  void CheckCount(const std::string& field, uint32_t count) {
    if (count > kMaxOfHost) Add(field, "is ", count, ", must be at most ", kMaxOfHost);
  }

  void CheckWorkers() {
    uint64_t workers = 0;
    for (const v1::HostProfile& host : profile_.host()) {
      workers += uint64_t{std::max(1U, host.count())} * std::max(1U, host.workers());
      if (workers > kMaxWorkers) {
        return Add("host", "more than ", kMaxWorkers, " workers in total");
      }
    }
  }

  void CheckHostLink(const std::string& field, const v1::HostLink& link) {
    bool known = true;
    for (const auto& [name, end] : {std::pair(link.from(), ".from"), std::pair(link.to(), ".to")}) {
      if (hosts_.contains(name)) continue;
      Add(field + end, "unknown host ", Quoted(name));
      known = false;
    }
    CheckLink(field + ".link", link.link());
    if (!known) return;
    if (link.from() == link.to() && hosts_.at(link.from()) == 1) {
      Add(field, Quoted(link.from()),
          " is a single host; the link between its workers is its `inside`");
    }
    if (!pairs_.insert(std::minmax(link.from(), link.to())).second) {
      Add(field, Quoted(link.from()), " and ", Quoted(link.to()),
          " have two links; only one is allowed");
    }
  }

  void CheckLink(const std::string& field, const v1::LinkProfile& link) {
    CheckNumber(field + ".alpha", link.alpha());
    CheckNumber(field + ".beta", link.beta(), /*positive=*/true);
    CheckNumber(field + ".gamma", link.gamma());
    CheckNumber(field + ".processor", link.processor());
    for (int i = 0; i < link.samples_size(); ++i) {
      v1::LinkProfile alone;
      *alone.add_samples() = link.samples(i);
      const absl::Status status = LinkProfileFromProto(alone).status();
      if (status.ok()) continue;
      Add(absl::StrCat(field, ".", Indexed("samples", i)), status.message());
    }
    if (link.samples_size() > kMaxLinkSamples) {
      Add(field + ".samples", "there are ", link.samples_size(), ", must be at most ",
          kMaxLinkSamples);
    }
  }

  // Without a default link, every pair of hosts needs its own.
  void CheckPairs() {
    std::string first;
    int64_t missing = 0;
    for (auto a = hosts_.begin(); a != hosts_.end(); ++a) {
      for (auto b = a; b != hosts_.end(); ++b) {
        const bool needed = a != b || a->second > 1;
        if (!needed || pairs_.contains({a->first, b->first})) continue;
        if (missing++ == 0) first = absl::StrCat(Quoted(a->first), " and ", Quoted(b->first));
      }
    }
    if (missing == 0) return;
    Add("link", "no link between ", first,
        missing > 1 ? absl::StrCat(" and ", missing - 1, " other pairs") : "",
        "; add links or a default_link");
  }

  const v1::ClusterProfile& profile_;
  std::set<std::string> devices_;
  std::set<std::string> host_names_;
  // By name: the number of hosts.
  std::map<std::string, uint32_t> hosts_;
  std::set<std::pair<std::string, std::string>> pairs_;
};

std::vector<Problem> FindProfileProblems(const v1::ClusterProfile& profile) {
  return ProfileChecker(profile).Check();
}

// Prints a message field on one line.
class OneLine final : public TextFormat::FastFieldValuePrinter {
 public:
  OneLine() { printer_.SetSingleLineMode(true); }

  void PrintMessageStart(const google::protobuf::Message& /*message*/, int /*field_index*/,
                         int /*field_count*/, bool /*single_line_mode*/,
                         TextFormat::BaseTextGenerator* generator) const override {
    generator->PrintLiteral(" { ");
  }
  bool PrintMessageContent(const google::protobuf::Message& message, int /*field_index*/,
                           int /*field_count*/, bool /*single_line_mode*/,
                           TextFormat::BaseTextGenerator* generator) const override {
    std::string text;
    printer_.PrintToString(message, &text);
    generator->PrintString(text);
    return true;
  }
  void PrintMessageEnd(const google::protobuf::Message& /*message*/, int /*field_index*/,
                       int /*field_count*/, bool /*single_line_mode*/,
                       TextFormat::BaseTextGenerator* generator) const override {
    generator->PrintLiteral("}\n");
  }

 private:
  TextFormat::Printer printer_;
};

constexpr char kHeader[] =
    "# A cluster profile: the hosts and links of a cluster, measured by `cadre probe` or written "
    "by\n"
    "# hand. `cadre plan SPEC --workers N --profile THIS` plans for it; edit it to evaluate other\n"
    "# links, hosts or numbers of them.\n"
    "# Links: alpha is seconds per message, beta seconds per byte (one over the bandwidth), gamma\n"
    "# seconds to add a byte, processor seconds of processor time per byte sent. Every pair of "
    "hosts\n"
    "# needs a link, unless there is a default_link.\n";

}  // namespace

absl::StatusOr<v1::ClusterProfile> ReadClusterProfile(const std::string& path) {
  return ReadValidMessage(path, kMaxProfileBytes, "a cluster profile in text format",
                          FindProfileProblems);
}

absl::Status CheckProfile(const v1::ClusterProfile& profile) {
  return StatusOf(FindProfileProblems(profile));
}

std::string PrintClusterProfile(const v1::ClusterProfile& profile) {
  TextFormat::Printer printer;
  for (const FieldDescriptor* field :
       {v1::ModelTimes::descriptor()->FindFieldByNumber(v1::ModelTimes::kTimeFieldNumber),
        v1::LinkProfile::descriptor()->FindFieldByNumber(v1::LinkProfile::kSamplesFieldNumber)}) {
    // The printer takes ownership.
    auto one_line = std::make_unique<OneLine>();
    if (printer.RegisterFieldValuePrinter(field, one_line.get())) one_line.release();
  }
  std::string text;
  printer.PrintToString(profile, &text);
  return absl::StrCat(kHeader, "\n", text);
}

std::string ModelKey(const v1::Model& model) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    model.SerializeToCodedStream(&coded);
  }
  return DigestHex(TextDigest(bytes));
}

}  // namespace cadre
