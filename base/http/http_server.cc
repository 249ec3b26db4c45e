// libmicrohttpd calls Handle twice for each request: the first call only marks it as begun, and the
// second one answers it. Bodies are never read: a request that has one is refused.
//
// A stream that has nothing to send suspends its connection, so that the server's thread sleeps.
// EventStream calls suspend and resume with its lock held; a connection is therefore resumed only
// after it was suspended.
#include "base/http/http_server.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

constexpr unsigned kTimeoutSeconds = 20;
// Limit for event streams. They send an event or a comment more often, so a connection is idle
// only if its viewer does not read.
constexpr unsigned kStreamTimeoutSeconds = 60;
constexpr size_t kRequestMemory = 32 << 10;
constexpr size_t kStreamBlock = 32 << 10;

struct Address {
  std::string host;
  sockaddr_storage storage{};
  bool v6 = false;
};

absl::StatusOr<Address> Resolve(const std::string& listen) {
  const absl::Status malformed =
      absl::InvalidArgumentError(absl::StrCat("listen address '", listen, "' is not host:port"));
  const size_t colon = listen.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(listen.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return malformed;
  }
  Address address{.host = listen.substr(0, colon)};
  std::string host = absl::EqualsIgnoreCase(address.host, "localhost") ? "127.0.0.1" : address.host;
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return malformed;
  const absl::Cleanup release = [found] { freeaddrinfo(found); };
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.v6 = found->ai_family == AF_INET6;
  return address;
}

// The name or address in a Host header, without its port.
std::string HostOf(absl::string_view header) {
  const size_t colon = header.rfind(':');
  const bool port = colon != absl::string_view::npos && header.back() != ']' &&
                    (header.front() != '[' || header[colon - 1] == ']');
  return std::string(port ? header.substr(0, colon) : header);
}

bool IsAddress(const std::string& host) {
  in6_addr address;
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return true;
  return host.size() > 2 && host.front() == '[' &&
         inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &address) == 1;
}

// A connection that reads a stream.
struct Subscription {
  EventStream* stream;
  MHD_Connection* connection;
  // The number that EventStream::Join has returned.
  uint64_t viewer = 0;
};

ssize_t ReadStream(void* data, uint64_t /*position*/, char* buffer, size_t size) {
  auto* const subscription = static_cast<Subscription*>(data);
  const ssize_t copied = subscription->stream->Read(
      subscription->viewer, buffer, size,
      [subscription] { MHD_suspend_connection(subscription->connection); });
  return copied < 0 ? MHD_CONTENT_READER_END_OF_STREAM : copied;
}

void EndStream(void* data) {
  auto* const subscription = static_cast<Subscription*>(data);
  subscription->stream->Leave(subscription->viewer);
  delete subscription;
}

MHD_Result AddQuery(void* data, MHD_ValueKind /*kind*/, const char* key, const char* value) {
  auto* const query = static_cast<std::map<std::string, std::string>*>(data);
  if (value != nullptr) (*query)[key] = value;
  return MHD_YES;
}

std::string HeaderOf(MHD_Connection* connection, const char* name) {
  const char* const value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? "" : value;
}

}  // namespace

uint64_t HttpRequest::Number(const std::string& name) const {
  const auto found = query.find(name);
  uint64_t number = 0;
  return found != query.end() && absl::SimpleAtoi(found->second, &number) ? number : 0;
}

struct HttpServer::Impl {
  HttpServerOptions options;
  Handler handler;
  std::string host;
  MHD_Daemon* daemon = nullptr;

  // Whether requests with this Host header are answered.
  bool AcceptsHost(const std::string& header) const {
    if (header.empty()) return false;
    const std::string named = HostOf(header);
    const auto is_named = [&](const std::string& other) {
      return other == "*" || absl::EqualsIgnoreCase(other, named);
    };
    // A numeric address cannot be a name that another site has made resolve to this host.
    return IsAddress(named) || absl::EqualsIgnoreCase(named, "localhost") || is_named(host) ||
           std::any_of(options.hosts.begin(), options.hosts.end(), is_named);
  }

  HttpResponse Answer(MHD_Connection* connection, const char* url, absl::string_view method) {
    if (method != "GET" && method != "HEAD") {
      return {.status = 405,
              .body = "only GET and HEAD are allowed\n",
              .headers = {{"Allow", "GET, HEAD"}}};
    }
    if (!AcceptsHost(HeaderOf(connection, MHD_HTTP_HEADER_HOST))) {
      return {.status = 421, .body = "the Host header names another server\n"};
    }
    HttpRequest request{.path = url,
                        .if_none_match = HeaderOf(connection, MHD_HTTP_HEADER_IF_NONE_MATCH),
                        .last_event_id = HeaderOf(connection, "Last-Event-ID"),
                        .accepts_gzip = absl::StrContains(
                            HeaderOf(connection, MHD_HTTP_HEADER_ACCEPT_ENCODING), "gzip")};
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, AddQuery, &request.query);
    return handler(request);
  }

  static MHD_Response* MakeResponse(MHD_Connection* connection, HttpResponse& answer) {
    if (answer.stream == nullptr) {
      return MHD_create_response_from_buffer(answer.body.size(), answer.body.data(),
                                             MHD_RESPMEM_MUST_COPY);
    }
    auto* const subscription = new Subscription{answer.stream, connection};
    subscription->viewer =
        answer.stream->Join(answer.after, [connection] { MHD_resume_connection(connection); });
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, kStreamTimeoutSeconds);
    return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kStreamBlock, ReadStream,
                                             subscription, EndStream);
  }

  static MHD_Result Handle(void* self, MHD_Connection* connection, const char* url,
                           const char* method, const char* /*version*/, const char* /*data*/,
                           size_t* size, void** state) {
    static char begun;
    if (*state == nullptr) {
      *state = &begun;
      return MHD_YES;
    }
    if (*size != 0) return MHD_NO;
    HttpResponse answer = static_cast<Impl*>(self)->Answer(connection, url, method);
    MHD_Response* const response = MakeResponse(connection, answer);
    if (response == nullptr) return MHD_NO;
    const absl::Cleanup release = [response] { MHD_destroy_response(response); };
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.content_type.c_str());
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (answer.stream != nullptr) {
      MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    for (const auto& [name, value] : answer.headers) {
      MHD_add_response_header(response, name.c_str(), value.c_str());
    }
    return MHD_queue_response(connection, answer.status, response);
  }
};

HttpServer::HttpServer(HttpServerOptions options, Handler handler)
    : impl_(new Impl{.options = std::move(options), .handler = std::move(handler)}) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                              Handler handler) {
  auto resolved = Resolve(options.listen);
  if (!resolved.ok()) return resolved.status();
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(options), std::move(handler)));
  Impl& impl = *server->impl_;
  impl.host = resolved->host;
  unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
  if (resolved->v6) flags |= MHD_USE_DUAL_STACK;
  const unsigned max = impl.options.max_connections;
  impl.daemon = MHD_start_daemon(
      flags, 0, nullptr, nullptr, &Impl::Handle, &impl, MHD_OPTION_SOCK_ADDR, &resolved->storage,
      MHD_OPTION_CONNECTION_LIMIT, max, MHD_OPTION_PER_IP_CONNECTION_LIMIT, max - max / 4,
      MHD_OPTION_CONNECTION_TIMEOUT, kTimeoutSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      kRequestMemory, MHD_OPTION_END);
  if (impl.daemon == nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("cannot listen on ", impl.options.listen,
                                                 ": the port is in use or not permitted"));
  }
  const MHD_DaemonInfo* const info = MHD_get_daemon_info(impl.daemon, MHD_DAEMON_INFO_BIND_PORT);
  server->address_ = absl::StrCat(impl.host, ":", info->port);
  return server;
}

HttpServer::~HttpServer() {
  if (impl_->daemon != nullptr) MHD_stop_daemon(impl_->daemon);
}

}  // namespace cadre
