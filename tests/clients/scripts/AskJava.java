// Java's own HTTP client with its default settings, which offers HTTP/2 by an upgrade with each request.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

public class AskJava {
    static final String URL = System.getenv("CLIENT_URL");
    static final String MODEL = System.getenv("CLIENT_MODEL");
    static final Pattern CONTENT = Pattern.compile("\"content\":\"((?:[^\"\\\\]|\\\\.)*)\"");
    static final String SCHEMA =
        "{\"type\":\"object\",\"properties\":{\"colour\":{\"enum\":[\"red\",\"green\"]}},\"required\":[\"colour\"],"
            + "\"additionalProperties\":false}";

    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        check(client.version() == HttpClient.Version.HTTP_2, "the default version is HTTP/2");

        HttpResponse<String> models = client.send(
            HttpRequest.newBuilder(URI.create(URL + "/v1/models")).timeout(Duration.ofSeconds(60)).build(),
            BodyHandlers.ofString());
        check(models.statusCode() == 200 && models.body().contains("\"" + MODEL + "\""), models.body());

        // A post keeps its body, and a stream is the whole answer in parts.
        String whole = ok(client, body("", 24));
        List<String> lines = client.send(post(body(",\"stream\":true", 24)), BodyHandlers.ofLines())
            .body().collect(Collectors.toList());
        check(lines.contains("data: [DONE]"), "the stream is complete");
        check(contents(String.join("\n", lines)).equals(contents(whole)), lines + " is not " + whole);
        check(!contents(whole).isEmpty(), whole);

        // A body that is longer than one window of the socket, sent in chunks because its length is not told.
        String padded = body("", 4) + " ".repeat(300_000);
        HttpRequest chunked = HttpRequest.newBuilder(URI.create(URL + "/v1/chat/completions"))
            .header("Content-Type", "application/json")
            .timeout(Duration.ofSeconds(60))
            .POST(BodyPublishers.fromPublisher(BodyPublishers.ofString(padded)))
            .build();
        check(client.send(chunked, BodyHandlers.ofString()).statusCode() == 200, "a body in chunks");

        // Requests at the same time, and HTTP/1.1 on request, have the same answer.
        List<CompletableFuture<HttpResponse<String>>> sent = IntStream.range(0, 6)
            .mapToObj(each -> client.sendAsync(post(body("", 24)), BodyHandlers.ofString()))
            .collect(Collectors.toList());
        for (CompletableFuture<HttpResponse<String>> each : sent) {
            check(contents(each.get().body()).equals(contents(whole)), each.get().body());
        }
        HttpClient older = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        check(contents(ok(older, body("", 24))).equals(contents(whole)), "HTTP/1.1");

        // A schema is obeyed.
        String form = ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"paint\",\"schema\":"
            + SCHEMA + "}}";
        String shaped = contents(ok(client, body(form, 40))).replaceAll("\\\\n| ", "");
        check(shaped.matches("\\{\\\\\"colour\\\\\":\\\\\"(red|green)\\\\\"}"), shaped);

        // Errors come as answers.
        HttpResponse<String> refused = client.send(post("{\"model\":"), BodyHandlers.ofString());
        check(refused.statusCode() == 400 && refused.body().contains("\"error\""), refused.body());
        HttpResponse<String> unknown =
            client.send(post(body("", 4).replace(MODEL, "no-such-model")), BodyHandlers.ofString());
        check(unknown.statusCode() == 404 && unknown.body().contains("model_not_found"), unknown.body());
    }

    static String body(String more, int tokens) {
        return "{\"model\":\"" + MODEL + "\",\"messages\":[{\"role\":\"user\",\"content\":\"What does len do?\"}],"
            + "\"temperature\":0,\"max_tokens\":" + tokens + more + "}";
    }

    static HttpRequest post(String body) {
        return HttpRequest.newBuilder(URI.create(URL + "/v1/chat/completions"))
            .header("Content-Type", "application/json")
            .timeout(Duration.ofSeconds(60))
            .POST(BodyPublishers.ofString(body))
            .build();
    }

    static String ok(HttpClient client, String body) throws Exception {
        HttpResponse<String> answer = client.send(post(body), BodyHandlers.ofString());
        check(answer.statusCode() == 200, answer.statusCode() + " " + answer.body());
        return answer.body();
    }

    /** Returns all contents of messages or deltas, with JSON's escapes. */
    static String contents(String text) {
        StringBuilder found = new StringBuilder();
        Matcher matcher = CONTENT.matcher(text);
        while (matcher.find()) {
            found.append(matcher.group(1));
        }
        return found.toString();
    }

    static void check(boolean holds, String said) {
        if (!holds) {
            throw new AssertionError(said);
        }
    }
}
