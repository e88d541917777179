//! The pages of a list: their size and their retries.

use std::future::pending;

use bytes::Bytes;
use http_body_util::BodyExt;
use portreeve_client::{ApiErrorKind, METADATA_LIST, is_timeout};

use super::{Error, Reflector};
use crate::watch::Query;

/// The number of attempts for a page before the list starts over.
const PAGE_ATTEMPTS: u32 = 5;

impl Reflector {
    /// Requests one page and returns its bytes. Retries every page but the first, because the
    /// previous pages are already applied.
    pub(super) async fn page(&mut self, is_paged: bool, next: Option<&str>) -> Result<Bytes, Error> {
        for _ in 1..PAGE_ATTEMPTS {
            match self.try_page(is_paged, next).await {
                Err(error) if next.is_some() && error.is_transient() => self.back_off(&error, pending()).await,
                done => return done,
            }
        }
        self.try_page(is_paged, next).await
    }

    /// Requests one page. If it takes too long, the pages of this loop are half as large from then
    /// on.
    async fn try_page(&mut self, is_paged: bool, next: Option<&str>) -> Result<Bytes, Error> {
        let page = self.send_page(is_paged.then_some(self.page_size), next).await;
        if is_paged && page.as_ref().is_err_and(|error| is_timeout(error)) {
            self.page_size = (self.page_size / 2).max(1);
        }
        page
    }

    async fn send_page(&mut self, limit: Option<u32>, next: Option<&str>) -> Result<Bytes, Error> {
        let mut query = Query::new(&self.config.watch);
        if let Some(limit) = limit {
            query.add("limit", &limit.to_string());
        }
        if let Some(next) = next {
            query.add("continue", next);
        }
        let response = self.send(query, METADATA_LIST).await.map_err(Error::List);
        let response = match response {
            Err(error) if error.kind() == ApiErrorKind::Expired && next.is_some() && limit.is_some() => {
                self.unpaged = true;
                return Err(Error::ListExpired);
            }
            response => response?,
        };
        let body = response.into_body().collect().await;
        Ok(body.map_err(|source| Error::Read(source.into()))?.to_bytes())
    }
}
