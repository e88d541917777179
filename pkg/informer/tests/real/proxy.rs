//! A cable between informer and apiserver that can be pulled.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::*;

/// Passes bytes on from a port of its own to another, for as long as it is plugged in.
pub(crate) struct Cable {
    from: u16,
    to: u16,
    plugged: Option<JoinSet<()>>,
}

impl Cable {
    /// A cable to the apiserver of this configuration, and the configuration of who is at its other end.
    pub(crate) async fn to(mut config: Config) -> Result<(Self, Config)> {
        let to = config.cluster_url.port_u16().unwrap_or(443);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let from = listener.local_addr()?.port();
        config.cluster_url = format!("https://127.0.0.1:{from}").parse()?;
        let plugged = None;
        let mut cable = Self { from, to, plugged };
        cable.serve(listener);
        Ok((cable, config))
    }

    /// Breaks every connection, and lets none be opened.
    pub(crate) async fn pull(&mut self) {
        if let Some(mut tasks) = self.plugged.take() {
            tasks.shutdown().await;
        }
    }

    pub(crate) async fn plug(&mut self) -> Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", self.from)).await?;
        self.serve(listener);
        Ok(())
    }

    fn serve(&mut self, listener: TcpListener) {
        let to = self.to;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // Dropped with this task, and they with it.
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                connections.spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", to)).await {
                        let _ = copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        self.plugged = Some(tasks);
    }
}
