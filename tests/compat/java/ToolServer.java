// Runs Kafka's command-line programs one after the other in one JVM, so that each costs no start.
//
// A request is a line of base64 fields divided by spaces: the main class, what stdin holds, the
// arguments. The answer is a line: exit code, stdout, stderr, the latter two in base64. A program
// that takes too long is interrupted and answers with code 124.

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.utils.Exit;

public class ToolServer {
    private static final long LIMIT_MS = 90_000;
    private static final List<Runnable> HOOKS = new CopyOnWriteArrayList<>();

    /** Thrown in place of leaving the JVM. */
    private static final class Left extends RuntimeException {
        final int code;

        Left(int code) {
            super("exit " + code, null, false, false);
            this.code = code;
        }
    }

    public static void main(String[] none) throws Exception {
        var requests = new BufferedReader(new InputStreamReader(System.in));
        PrintStream answers = System.out;
        AtomicInteger first = new AtomicInteger(-1);
        Exit.Procedure leave = (code, message) -> {
            first.compareAndSet(-1, code);
            throw new Left(code);
        };
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        // Some programs finish their work in one, as ConsoleProducer closes its producer.
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        String line;
        while ((line = requests.readLine()) != null) {
            String[] coded = line.split(" ", -1);
            String[] fields = Arrays.stream(coded).map(ToolServer::decode).toArray(String[]::new);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            System.setIn(new ByteArrayInputStream(fields[1].getBytes(StandardCharsets.UTF_8)));
            first.set(-1);
            int code = run(fields[0], Arrays.copyOfRange(fields, 2, fields.length), first);
            System.out.flush();
            System.err.flush();
            answers.println(code + " " + encode(out) + " " + encode(err));
            answers.flush();
        }
    }

    private static int run(String main, String[] arguments, AtomicInteger first)
            throws InterruptedException {
        AtomicInteger code = new AtomicInteger(124);
        Thread thread = new Thread(() -> code.set(call(main, arguments)), main);
        thread.setDaemon(true);
        thread.start();
        thread.join(LIMIT_MS);
        Thread hooks = new Thread(() -> HOOKS.forEach(Runnable::run), "shutdown hooks");
        hooks.setDaemon(true);
        hooks.start();
        hooks.join(LIMIT_MS);
        HOOKS.clear();
        if (thread.isAlive()) {
            for (StackTraceElement frame : thread.getStackTrace()) {
                System.err.println("  at " + frame);
            }
            thread.interrupt();
            thread.join(5_000);
            return 124;
        }
        // What a program catches of ours does not change what it wanted to end with.
        return first.get() >= 0 ? first.get() : code.get();
    }

    private static int call(String main, String[] arguments) {
        try {
            Method entry = Class.forName(main).getMethod("main", String[].class);
            entry.invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Left left) {
                return left.code;
            }
            error.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            return 1;
        }
    }

    private static String decode(String field) {
        return new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8);
    }

    private static String encode(ByteArrayOutputStream bytes) {
        return Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
