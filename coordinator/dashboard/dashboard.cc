#include "coordinator/dashboard/dashboard.h"

#include <glog/logging.h>
#include <zlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/digest.h"
#include "base/rpc/daemon.h"
#include "base/status.h"
#include "coordinator/dashboard/assets.h"
#include "proto/json.h"

namespace cadre {
namespace {

constexpr int kUpdatesPerSecond = 4;
// Values that change all the time, such as ages of heartbeats, are updated this often.
constexpr absl::Duration kIdleUpdate = absl::Seconds(2);
constexpr absl::Duration kKeepAlive = absl::Seconds(15);
constexpr absl::Duration kReadTimeout = absl::Seconds(2);
// How long an answer is repeated.
constexpr absl::Duration kValid = absl::Milliseconds(400);
constexpr size_t kMaxKept = 64;
constexpr size_t kMaxKeptBytes = 16 << 20;
// Entries of the history that are sent again with new ones, because ranks have completed them.
constexpr uint64_t kRepeated = 2;

constexpr char kJson[] = "application/json; charset=utf-8";
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string Zip(absl::string_view text) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16;
  CHECK_EQ(deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip, 9, Z_DEFAULT_STRATEGY),
           Z_OK);
  std::string zipped(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(zipped.data());
  stream.avail_out = static_cast<uInt>(zipped.size());
  CHECK_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  zipped.resize(stream.total_out);
  deflateEnd(&stream);
  return zipped;
}

Json OverviewOf(const Machine& machine, absl::Time now) {
  v1::StatusRequest request;
  request.set_page_size(1);
  Json json = Json::object();
  json["time_ms"] = absl::ToUnixMillis(now);
  const auto status = machine.Status(now, request);
  if (status.ok()) {
    json["coordinator"] = ToJson(status->coordinator());
    json["counters"] = ToJson(*status)["counters"];
  }
  json["runs"] = Json::array();
  json["groups"] = Json::array();
  const v1::ListReply list = machine.List(now);
  for (const v1::RunStatus& run : list.runs()) {
    json["runs"].push_back(ToJson(run));
    const v1::WatchUpdate update = machine.Update(run.run(), now);
    for (const v1::GroupStatus& group : update.groups()) json["groups"].push_back(ToJson(group));
  }
  const MemberCounts counts = machine.CountMembers();
  json["members"] = {{"idle", counts.idle},
                     {"busy", counts.busy},
                     {"excluded", counts.excluded},
                     {"workers_away", counts.workers_away},
                     {"aggregators", counts.aggregators},
                     {"aggregators_away", counts.aggregators_away}};
  json["newest_event"] = machine.Events({}).newest();
  return json;
}

// All pages.
v1::StatusReply WholeStatus(const Machine& machine, absl::Time now, const std::string& run,
                            bool details) {
  v1::StatusRequest request;
  request.set_run(run);
  request.set_details(details);
  v1::StatusReply all;
  do {
    const auto page = machine.Status(now, request);
    if (!page.ok()) break;
    all.MergeFrom(*page);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

}  // namespace

Dashboard::Dashboard(CoordinatorService& service) : service_(service) {
  for (const Asset& asset : DashboardAssets()) {
    files_[asset.path] = {.content_type = asset.content_type,
                          .bytes = std::string(asset.bytes),
                          .zipped = Zip(asset.bytes),
                          .tag = absl::StrCat("\"", DigestHex(TextDigest(asset.bytes)), "\"")};
  }
}

absl::StatusOr<std::unique_ptr<Dashboard>> Dashboard::Start(const DashboardOptions& options,
                                                            CoordinatorService& service) {
  if (!CheckListenAddress(options.listen, options.insecure).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dashboard-listen=", options.listen,
        ": the dashboard has no authentication, so it listens on loopback addresses only; forward "
        "the port, or put a proxy in front of it"));
  }
  std::unique_ptr<Dashboard> dashboard(new Dashboard(service));
  CADRE_ASSIGN_OR_RETURN(dashboard->server_,
                         HttpServer::Start({.listen = options.listen, .hosts = options.hosts},
                                           [self = dashboard.get()](const HttpRequest& request) {
                                             return self->Answer(request);
                                           }));
  dashboard->publisher_ = std::thread([self = dashboard.get()] { self->Publish(); });
  return dashboard;
}

Dashboard::~Dashboard() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (publisher_.joinable()) publisher_.join();
  stream_.Close();
  server_.reset();
}

HttpResponse Dashboard::Answer(const HttpRequest& request) {
  HttpResponse response;
  if (request.path == "/api/v1/stream") {
    response.content_type = "text/event-stream";
    response.stream = &stream_;
  } else if (absl::StartsWith(request.path, "/api/")) {
    const absl::StatusOr<std::string> body = Api(request);
    response.content_type = kJson;
    if (body.ok()) {
      response.body = *body;
    } else {
      response.status = absl::IsNotFound(body.status()) ? 404 : 503;
      response.body = OneLine(Json{{"error", std::string(body.status().message())}});
    }
  } else if (const auto file = files_.find(request.path); file != files_.end()) {
    response = AnswerFile(request, file->second);
  } else {
    response.status = 404;
    response.body = "not found\n";
  }
  response.headers.try_emplace("Cache-Control", "no-store");
  response.headers["Content-Security-Policy"] = kPolicy;
  response.headers["Referrer-Policy"] = "no-referrer";
  response.headers["Cross-Origin-Resource-Policy"] = "same-origin";
  return response;
}

HttpResponse Dashboard::AnswerFile(const HttpRequest& request, const File& file) const {
  HttpResponse response{.content_type = file.content_type};
  response.headers = {
      {"ETag", file.tag}, {"Cache-Control", "no-cache"}, {"Vary", "Accept-Encoding"}};
  if (request.if_none_match == file.tag) {
    response.status = 304;
  } else if (request.accepts_gzip) {
    response.headers["Content-Encoding"] = "gzip";
    response.body = file.zipped;
  } else {
    response.body = file.bytes;
  }
  return response;
}

absl::StatusOr<std::string> Dashboard::Api(const HttpRequest& request) {
  const absl::Time now = absl::Now();
  std::string key = request.path;
  // Other parameters do not change the answer.
  for (const char* name : {"after", "run"}) {
    const auto value = request.query.find(name);
    if (value != request.query.end()) absl::StrAppend(&key, "&", name, "=", value->second);
  }
  if (const auto found = kept_.find(key); found != kept_.end() && now < found->second.until) {
    return found->second.body;
  }
  CADRE_ASSIGN_OR_RETURN(std::string body, Compute(request));
  if (kept_.size() >= kMaxKept || kept_bytes_ + body.size() > kMaxKeptBytes) {
    kept_.clear();
    kept_bytes_ = 0;
  }
  // An answer that is replaced is counted until all are discarded.
  kept_bytes_ += body.size();
  kept_[key] = {.until = absl::Now() + kValid, .body = body};
  return body;
}

absl::StatusOr<std::string> Dashboard::Compute(const HttpRequest& request) {
  absl::string_view path = request.path;
  absl::ConsumePrefix(&path, "/api/v1/");
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  absl::StatusOr<Json> json = absl::NotFoundError("no such path");
  std::function<void(const Machine&, absl::Time)> read;
  if (path == "overview") {
    read = [&](const Machine& machine, absl::Time now) { json = OverviewOf(machine, now); };
  } else if (path == "members") {
    read = [&](const Machine& machine, absl::Time now) {
      const Json all = ToJson(WholeStatus(machine, now, "", /*details=*/false));
      json = Json{{"workers", all["workers"]}, {"aggregators", all["aggregators"]}};
    };
  } else if (path == "events") {
    v1::EventsRequest events;
    events.set_after(request.Number("after"));
    if (const auto run = request.query.find("run"); run != request.query.end()) {
      events.set_run(run->second);
    }
    read = [&, events](const Machine& machine, absl::Time) {
      json = ToJson(machine.Events(events));
    };
  } else if (parts.size() == 3 && parts[0] == "runs" && parts[2] == "history") {
    v1::HistoryRequest history;
    history.set_run(parts[1]);
    history.set_after(request.Number("after"));
    read = [&, history](const Machine& machine, absl::Time) {
      const auto reply = machine.History(history);
      json = reply.ok() ? absl::StatusOr<Json>(ToJson(*reply)) : reply.status();
    };
  } else if (parts.size() == 3 && parts[0] == "runs" && parts[2] == "groups") {
    read = [&](const Machine& machine, absl::Time now) {
      const v1::StatusReply status = WholeStatus(machine, now, parts[1], /*details=*/true);
      if (status.runs_size() > 0) json = Json{{"groups", ToJson(status)["groups"]}};
    };
  } else {
    return json.status();
  }
  CADRE_RETURN_IF_ERROR(service_.Read(read, kReadTimeout));
  CADRE_RETURN_IF_ERROR(json.status());
  return OneLine(*json);
}

void Dashboard::Publish() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(this, &Dashboard::Stopping),
                              absl::Seconds(1) / kUpdatesPerSecond);
      if (stopping_) return;
    }
    const absl::Time now = absl::Now();
    if (now >= alive_ + kKeepAlive) {
      alive_ = now;
      stream_.KeepAlive();
    }
    const bool watched = stream_.viewers() > 0;
    // The first viewer after a pause has read older entries from the interface.
    if (watched && !std::exchange(watched_, watched)) published_ = absl::InfinitePast();
    watched_ = watched;
    if (watched) PublishOnce();
  }
}

void Dashboard::PublishOnce() {
  Json overview;
  std::vector<Json> histories;
  Json events;
  const auto read = [&](const Machine& machine, absl::Time now) {
    std::map<std::string, uint64_t> revisions = machine.Revisions("");
    const uint64_t newest = machine.Events({}).newest();
    const bool changed = revisions != revisions_ || newest != events_;
    if (!changed && now < published_ + kIdleUpdate) return;
    published_ = now;
    overview = OverviewOf(machine, now);
    for (const auto& [run, revision] : revisions) {
      const auto before = revisions_.find(run);
      if (before != revisions_.end() && before->second == revision) continue;
      v1::HistoryRequest request;
      request.set_run(run);
      const uint64_t known = histories_[run];
      request.set_after(known - std::min(known, kRepeated));
      const auto reply = machine.History(request);
      if (!reply.ok() || reply->entries_size() == 0) continue;
      histories_[run] = reply->newest();
      Json json = ToJson(*reply);
      json["run"] = run;
      histories.push_back(std::move(json));
    }
    if (newest != events_) {
      v1::EventsRequest request;
      request.set_after(events_);
      events = ToJson(machine.Events(request));
      events_ = newest;
    }
    revisions_ = std::move(revisions);
  };
  if (const absl::Status status = service_.Read(read, kReadTimeout); !status.ok()) return;
  if (!overview.is_null()) stream_.Publish("overview", OneLine(overview));
  for (const Json& history : histories) stream_.Publish("history", OneLine(history));
  if (!events.is_null()) stream_.Publish("events", OneLine(events));
}

}  // namespace cadre
