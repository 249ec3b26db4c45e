// The coordinator's services in C, with JSON.
#include <google/protobuf/util/json_util.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/rpc/address_list.h"
#include "base/rpc/credentials.h"
#include "base/status.h"
#include "coordinator/client/coordinator_client.h"
#include "group/cadre_group.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/formats/safetensors.h"
#include "model/run_file.h"
#include "model/validate.h"
#include "server/client/version_reader.h"

struct cadre_client {
  cadre::Credentials credentials = cadre::Credentials::Insecure();
  std::unique_ptr<cadre::CoordinatorClient> coordinator;
  absl::Status status;
  // Returned to the caller.
  std::string text;
  std::string error;

  // The JSON that the call returns; null after an error or an exception, such as that of a lack of
  // memory.
  template <typename Call>
  const char* Return(const Call& call) {
    try {
      absl::StatusOr<std::string> json = call();
      error = std::string(json.status().message());
      if (!json.ok()) return nullptr;
      text = *std::move(json);
      return text.c_str();
    } catch (const std::exception& exception) {
      error = exception.what();
      return nullptr;
    }
  }
};

namespace cadre {
namespace {

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message,
                                   bool with_defaults = true) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = with_defaults;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(status.ToString());
  return json;
}

absl::StatusOr<v1::RunSpec> ParseSpec(const std::string& text) {
  if (!absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{")) {
    CADRE_ASSIGN_OR_RETURN(RunSpecFile file, ParseRunSpec("run", text));
    CADRE_RETURN_IF_ERROR(file.Refuse(FindProblems(file.spec)));
    return std::move(file.spec);
  }
  v1::RunSpec spec;
  const auto status = google::protobuf::util::JsonStringToMessage(text, &spec);
  if (!status.ok()) return absl::InvalidArgumentError(status.ToString());
  CADRE_RETURN_IF_ERROR(ValidateRunSpec(spec));
  return spec;
}

absl::StatusOr<std::string> ParseRunFile(const std::string& name, const std::string& text) {
  CADRE_ASSIGN_OR_RETURN(const RunSpecFile file, ParseRunSpec(name, text));
  return ToJson(file.spec, /*with_defaults=*/false);
}

// Reads from the coordinator. The first call after its restart may fail on the broken connection of
// this client, so it is made again.
template <typename Read>
auto ReadAgain(const Read& read) {
  auto reply = read();
  return absl::IsUnavailable(reply.status()) ? read() : std::move(reply);
}

absl::StatusOr<std::string> Submit(const cadre_client& client, const std::string& text,
                                   int32_t join_existing) {
  CADRE_RETURN_IF_ERROR(client.status);
  if (join_existing < 0 || join_existing > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("join_existing is ", join_existing, "; give 0, 1 or 2"));
  }
  CADRE_ASSIGN_OR_RETURN(const v1::RunSpec spec, ParseSpec(text));
  v1::SubmitReply reply;
  if (join_existing != 0) {
    const bool join_ended = join_existing == 2;
    CADRE_ASSIGN_OR_RETURN(reply, client.coordinator->Join(spec, join_ended));
  } else {
    CADRE_ASSIGN_OR_RETURN(*reply.mutable_run(), client.coordinator->Submit(spec));
  }
  return ToJson(reply);
}

absl::StatusOr<std::string> ClusterStatus(const cadre_client& client, const std::string& run) {
  CADRE_RETURN_IF_ERROR(client.status);
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply reply,
                         ReadAgain([&] { return client.coordinator->Status(run); }));
  return ToJson(reply);
}

absl::StatusOr<std::string> History(const cadre_client& client, const std::string& run,
                                    uint64_t after) {
  CADRE_RETURN_IF_ERROR(client.status);
  v1::HistoryRequest request;
  request.set_run(run);
  request.set_after(after);
  CADRE_ASSIGN_OR_RETURN(const v1::HistoryReply reply, ReadAgain([&] {
                           return client.coordinator->Call(&v1::Status::Stub::History, request);
                         }));
  return ToJson(reply);
}

absl::StatusOr<std::string> Pull(const cadre_client& client, const std::string& run,
                                 const std::string& path, const char* type_name) {
  CADRE_RETURN_IF_ERROR(client.status);
  CADRE_ASSIGN_OR_RETURN(const FloatType type,
                         ParseFloatType(type_name == nullptr ? "fp32" : type_name));
  const auto locate = [&] { return ReadAgain([&] { return client.coordinator->Locate(run); }); };
  CADRE_ASSIGN_OR_RETURN(ReadVersion version, ReadNewestVersion(run, locate, client.credentials));
  CADRE_RETURN_IF_ERROR(
      WriteSafetensors(path, WeightTensors(version.index), version.values, TorchMetadata(), type));
  version.located.clear_spec();
  return ToJson(version.located);
}

absl::StatusOr<std::string> Stop(const cadre_client& client, const std::string& run,
                                 const std::string& reason) {
  CADRE_RETURN_IF_ERROR(client.status);
  CADRE_RETURN_IF_ERROR(client.coordinator->Stop(run, reason));
  return "{}";
}

}  // namespace
}  // namespace cadre

extern "C" {

cadre_client* cadre_client_open(const char* coordinator, const char* tls, int32_t insecure) {
  auto* const client = new cadre_client;
  auto credentials = cadre::Credentials::FromFlags(tls == nullptr ? "" : tls, insecure != 0);
  client->status = credentials.status();
  if (credentials.ok()) client->status = cadre::CheckAddresses("coordinator", coordinator);
  if (client->status.ok()) {
    client->credentials = *std::move(credentials);
    client->coordinator =
        std::make_unique<cadre::CoordinatorClient>(cadre::CoordinatorClient::Options{
            .coordinator = coordinator, .credentials = client->credentials});
  }
  return client;
}

const char* cadre_client_submit(cadre_client* client, const char* spec, int32_t join_existing) {
  return client->Return([&] { return cadre::Submit(*client, spec, join_existing); });
}

const char* cadre_client_parse(cadre_client* client, const char* name, const char* text) {
  return client->Return([&] { return cadre::ParseRunFile(name, text); });
}

const char* cadre_client_status(cadre_client* client, const char* run) {
  return client->Return([&] { return cadre::ClusterStatus(*client, run); });
}

const char* cadre_client_history(cadre_client* client, const char* run, uint64_t after) {
  return client->Return([&] { return cadre::History(*client, run, after); });
}

const char* cadre_client_pull(cadre_client* client, const char* run, const char* path,
                              const char* type) {
  return client->Return([&] { return cadre::Pull(*client, run, path, type); });
}

const char* cadre_client_stop(cadre_client* client, const char* run, const char* reason) {
  return client->Return([&] { return cadre::Stop(*client, run, reason); });
}

const char* cadre_client_error(const cadre_client* client) { return client->error.c_str(); }

void cadre_client_close(cadre_client* client) { delete client; }

}  // extern "C"
